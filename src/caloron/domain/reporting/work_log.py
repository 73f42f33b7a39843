"""The work log of a task: each piece of work, its agent, its outcome, and what follows."""

from __future__ import annotations

import msgspec

from caloron.domain.model.facts import Result, WorkEnded
from caloron.domain.model.roles import WorkId
from caloron.domain.model.sprint import State
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task, Work, WorkLogEntry
from caloron.domain.reporting.identities import agent_of_item

_MAX_ENTRIES = 15
_LONGEST = 120
_STOPPED = (Status.ESCALATED, Status.CANCELLED, Status.BLOCKED)


def begun(task: Task, work: Work) -> None:
    """Add work that is queued; an attempt after the first keeps the earlier outcome."""
    if all(entry.item != work.item for entry in task.log.work):
        agent = WorkId.parse(work.item).agent
        entry = WorkLogEntry(item=work.item, role=work.role, agent=agent, head=work.head)
        task.log.work = (*task.log.work, entry)[-_MAX_ENTRIES:]


def ended(task: Task, item: str, outcome: str, head: str = "") -> None:
    """Record the outcome of work, and the commit that it left or judged."""
    line = " ".join(outcome.split())[:_LONGEST]
    task.log.work = tuple(
        msgspec.structs.replace(entry, outcome=line, head=head or entry.head)
        if entry.item == item
        else entry
        for entry in task.log.work
    )


def outcome_of(fact: WorkEnded, result: Result) -> str:
    """Return the end of an attempt in a few words."""
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
    """Return one row for each piece of work, the oldest first."""
    return [
        (
            str(WorkId.parse(entry.item).number),
            entry.role,
            entry.agent,
            str(state.attempts.get(entry.item, 0) or ""),
            entry.head[:12],
            _outcome(task, entry),
        )
        for entry in task.log.work
    ]


def _outcome(task: Task, entry: WorkLogEntry) -> str:
    if task.work and task.work.item == entry.item:
        return f"at work, again after: {entry.outcome}" if entry.outcome else "at work"
    if task.escalation.resume_work and task.escalation.resume_work.item == entry.item:
        return f"{entry.outcome or 'stopped'}; goes on when a person says so"
    return entry.outcome


def cycle_of(state: State, task: Task, *, waking: bool = False) -> int:
    """Count the starts of the task's own agent, with the one that is queued.

    `waking`: its work is being queued in this tick, perhaps not for the first time.
    """
    starts = {
        item: times
        for item, times in state.attempts.items()
        if item.startswith(f"{state.sprint.id}/{task.id}/") and agent_of_item(item) == task.agent
    }
    work = task.work.item if task.work else ""
    queued = waking or work not in starts or work in state.queued
    return sum(starts.values()) + (agent_of_item(work) == task.agent and queued)


def stopped_at(task: Task) -> str:
    """Return the commit that is safe on the forge, of a task that does not move."""
    change = task.change
    if task.status not in _STOPPED or not task.attempts.work_count:
        return ""
    if not change.pushed:
        return "nothing was pushed yet"
    unpushed = change.head not in ("", change.pushed)
    more = f"; {change.head[:12]} is not pushed yet" if unpushed else ""
    return f"{change.pushed[:12]} on {change.branch}{more}"


def next_step(task: Task) -> str:
    """Return what a release continues with; empty: the task is not escalated."""
    if task.status is not Status.ESCALATED:
        return ""
    if work := task.escalation.resume_work:
        start = f" from {work.head[:12]}" if work.head else " from the beginning"
        resumes = task.attempts.session and work.role != "review"
        return f"{work.role}{start}{' with the conversation so far' if resumes else ''}"
    if task.escalation.retry_effects:
        return "what the forge refused is tried again"
    return "what is on its branch is verified and reviewed" if task.links.pull else ""
