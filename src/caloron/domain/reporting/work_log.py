"""What was done for a task, piece by piece: who did it, what came of it, and what is to follow."""

from __future__ import annotations

import msgspec

from caloron.domain.model.facts import Result, WorkEnded
from caloron.domain.model.roles import WorkId
from caloron.domain.model.sprint import State
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task, Work, WorkLogEntry
from caloron.domain.reporting.identities import agent_of_item

_KEPT = 15
_LONGEST = 120
_STANDS = (Status.ESCALATED, Status.CANCELLED, Status.BLOCKED)


def begun(task: Task, work: Work) -> None:
    """Work was asked for; asked for again, it keeps what came of it before."""
    if any(crumb.item == work.item for crumb in task.log.work):
        return
    agent = WorkId.parse(work.item).agent
    crumb = WorkLogEntry(item=work.item, role=work.role, agent=agent, head=work.head)
    task.log.work = (*task.log.work, crumb)[-_KEPT:]


def ended(task: Task, item: str, outcome: str, head: str = "") -> None:
    """What came of it, and the commit that it left or spoke about."""
    said = " ".join(outcome.split())[:_LONGEST]
    task.log.work = tuple(
        msgspec.structs.replace(crumb, outcome=said, head=head or crumb.head)
        if crumb.item == item
        else crumb
        for crumb in task.log.work
    )


def outcome_of(fact: WorkEnded, result: Result) -> str:
    """How an attempt ended, in a few words."""
    match result.kind:
        case "committed":
            return "committed"
        case "unchanged":
            return "changed nothing"
        case "answered":
            return fact.last_line or "no answer"
        case "green":
            return f"not verified: {fact.skipped}" if fact.skipped else "green"
        case "red":
            return "red" if fact.exit_code else result.reason
        case "conflict":
            return f"conflicts in {result.reason}"
    return result.reason


def rows(state: State, task: Task) -> list[tuple[str, ...]]:
    """One row for each piece of work, the oldest first."""
    return [
        (
            str(WorkId.parse(crumb.item).number),
            crumb.role,
            crumb.agent,
            str(state.attempts.get(crumb.item, 0) or ""),
            crumb.head[:12],
            _outcome(task, crumb),
        )
        for crumb in task.log.work
    ]


def cycle_of(state: State, task: Task, *, waking: bool = False) -> int:
    """How often the task's agent was woken for it, the wake that is to come included.

    `waking`: its work is put into the queue just now, perhaps not for the first time.
    """
    prefix = f"{state.sprint.id}/{task.id}/"
    woken = {
        item: times
        for item, times in state.attempts.items()
        if item.startswith(prefix) and agent_of_item(item) == task.agent
    }
    work = task.work.item if task.work else ""
    to_come = waking or work not in woken or work in state.queued
    return sum(woken.values()) + (agent_of_item(work) == task.agent and to_come)


def _outcome(task: Task, crumb: WorkLogEntry) -> str:
    if task.work and task.work.item == crumb.item:
        return f"at work, again after: {crumb.outcome}" if crumb.outcome else "at work"
    if task.escalation.resume_work and task.escalation.resume_work.item == crumb.item:
        return f"{crumb.outcome or 'stopped'}; goes on when a person says so"
    return crumb.outcome


def stopped_at(task: Task) -> str:
    """What there is of a task that does not move: the commit that is safe on the forge."""
    if task.status not in _STANDS or not task.attempts.work_count:
        return ""
    if not task.change.pushed:
        return "nothing was pushed yet"
    more = (
        f"; {task.change.head[:12]} is not pushed yet"
        if task.change.head not in ("", task.change.pushed)
        else ""
    )
    return f"{task.change.pushed[:12]} on {task.change.branch}{more}"


def next_step(task: Task) -> str:
    """What follows once a person has said so; empty: it goes on by itself, or is over."""
    if task.status is not Status.ESCALATED:
        return ""
    if task.escalation.resume_work:
        at = (
            f" from {task.escalation.resume_work.head[:12]}"
            if task.escalation.resume_work.head
            else " from the beginning"
        )
        told = (
            " with the conversation so far"
            if task.attempts.session and task.escalation.resume_work.role != "review"
            else ""
        )
        return f"{task.escalation.resume_work.role}{at}{told}"
    if task.escalation.retry_effects:
        return "what the forge refused is tried again"
    return "what is on its branch is verified and reviewed" if task.links.pull else ""
