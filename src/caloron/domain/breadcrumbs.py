"""What was done for a task, piece by piece: who did it, what came of it, and what is to follow."""

from __future__ import annotations

import msgspec

from caloron.domain.facts import WorkEnded
from caloron.domain.identities import agent_of_item
from caloron.domain.sprint import REVIEWER, Crumb, State, Task, Work
from caloron.domain.status import Status

_KEPT = 15
_LONGEST = 120
_STANDS = (Status.ESCALATED, Status.CANCELLED, Status.BLOCKED)


def begun(task: Task, work: Work) -> None:
    """Work was asked for; asked for again, it keeps what came of it before."""
    if any(crumb.item == work.item for crumb in task.crumbs):
        return
    agent = {"review": REVIEWER, "verify": ""}.get(work.role, task.agent)
    crumb = Crumb(item=work.item, role=work.role, agent=agent, head=work.head)
    task.crumbs = (*task.crumbs, crumb)[-_KEPT:]


def ended(task: Task, item: str, outcome: str, head: str = "") -> None:
    """What came of it, and the commit that it left or spoke about."""
    said = " ".join(outcome.split())[:_LONGEST]
    task.crumbs = tuple(
        msgspec.structs.replace(crumb, outcome=said, head=head or crumb.head)
        if crumb.item == item
        else crumb
        for crumb in task.crumbs
    )


def outcome_of(fact: WorkEnded) -> str:
    """How an attempt ended, in a few words."""
    if fact.fault:
        return fact.fault
    if fact.timed_out:
        return "ran out of time"
    if fact.over or fact.trouble:
        return fact.over or f"{fact.trouble}: {fact.detail or fact.last_line}"
    if fact.conflicts:
        return f"conflicts in {', '.join(fact.conflicts)}"
    if fact.role == "verify":
        green = f"not verified: {fact.skipped}" if fact.skipped else "green"
        return "red" if fact.exit_code else green
    if fact.role in ("review", "check") and not fact.exit_code:
        return fact.last_line or "no answer"
    if fact.head != fact.base:
        return "committed"
    return f"exit code {fact.exit_code}: {fact.last_line}" if fact.exit_code else "changed nothing"


def rows(state: State, task: Task) -> list[tuple[str, ...]]:
    """One row for each piece of work, the oldest first."""
    return [
        (
            crumb.item.rsplit("/", 1)[-1].partition("-")[0],
            crumb.role,
            crumb.agent,
            str(state.attempts.get(crumb.item, 0) or ""),
            crumb.head[:12],
            _outcome(task, crumb),
        )
        for crumb in task.crumbs
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


def _outcome(task: Task, crumb: Crumb) -> str:
    if task.work and task.work.item == crumb.item:
        return f"at work, again after: {crumb.outcome}" if crumb.outcome else "at work"
    if task.held and task.held.item == crumb.item:
        return f"{crumb.outcome or 'stopped'}; goes on when a person says so"
    return crumb.outcome


def stopped_at(task: Task) -> str:
    """What there is of a task that does not move: the commit that is safe on the forge."""
    if task.status not in _STANDS or not task.works:
        return ""
    if not task.pushed:
        return "nothing was pushed yet"
    more = f"; {task.head[:12]} is not pushed yet" if task.head not in ("", task.pushed) else ""
    return f"{task.pushed[:12]} on {task.branch}{more}"


def next_step(task: Task) -> str:
    """What follows once a person has said so; empty: it goes on by itself, or is over."""
    if task.status is not Status.ESCALATED:
        return ""
    if task.held:
        at = f" from {task.held.head[:12]}" if task.held.head else " from the beginning"
        told = (
            " with the conversation so far" if task.session and task.held.role != "review" else ""
        )
        return f"{task.held.role}{at}{told}"
    if task.held_effects:
        return "what the forge refused is tried again"
    return "what is on its branch is verified and reviewed" if task.pull else ""
