"""What waits for a person, each with the commands that let it go on."""

from __future__ import annotations

import shlex
from typing import Literal

import msgspec

from caloron.domain.model.sprint import State
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task

Kind = Literal["escalated", "approval", "halted", "stopped", "no_plan", "resume", "discard", "take"]


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that only a person can move."""

    kind: Kind
    sprint: str
    task: str = ""
    title: str = ""
    why: str = ""
    commands: tuple[str, ...] = ()
    #: Tasks that go on once this one does.
    holds: tuple[str, ...] = ()
    #: Logs that show why.
    files: tuple[str, ...] = ()


def needs_of(state: State, *, running: bool, options: str = "") -> tuple[Need, ...]:
    """Everything in a sprint that waits for a person; `options` end each command.

    `running`: an engine works on the sprint, so what is released goes on by itself.
    """
    resume = f"caloron resume {state.sprint.id}{options}"
    found = [_of_sprint(state, resume, options, running=running)]
    found += [
        _escalated(state, task, "" if running else resume, options)
        for task in state.tasks.values()
        if task.status is Status.ESCALATED
    ]
    return tuple(need for need in found if need)


def _escalated(state: State, task: Task, resume: str, options: str) -> Need:
    place = task.links.issue if task.escalation.issue is None else task.escalation.issue
    steps = (
        [f"caloron logs {task.id} --sprint {state.sprint.id}{options}"]
        if task.attempts.work_count
        else []
    )
    if place is not None:
        steps.append(f"caloron issue comment {place} resolved{options}")
    return Need(
        kind="escalated",
        sprint=state.sprint.id,
        task=task.id,
        title=task.plan.title,
        why=task.reason,
        commands=(*steps, *([resume] if resume else [])),
        holds=_held_by(state, task),
    )


def _held_by(state: State, task: Task) -> tuple[str, ...]:
    """The tasks behind this one that nothing else can move, near and far."""
    held = {task.id}
    for _ in state.tasks:
        held |= {
            t.id
            for t in state.tasks.values()
            if t.status is Status.BLOCKED and held & set(t.plan.depends_on)
        }
    return tuple(t for t in state.tasks if t in held and t != task.id)


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def _of_sprint(state: State, resume: str, options: str, *, running: bool) -> Need | None:
    """What stops the sprint as a whole."""
    sprint = state.sprint
    if sprint.discard.by:
        if sprint.phase == "ended" or running:
            return None
        why, again = "it was not thrown away whole yet", f"caloron discard {sprint.id}{options}"
        return Need(kind="discard", sprint=sprint.id, why=why, commands=(again,))
    if sprint.planning.failure:
        # Behind `--` nothing is taken for an option.
        ahead, behind = (f"{options} --", "") if sprint.goal.startswith("-") else ("", options)
        again = f"caloron sprint{ahead} {shlex.quote(sprint.goal)}{behind}"
        red = sprint.planning.failure_kind == "red_main"
        ways = (resume, f"{resume} --allow-red") if red else (resume, again)
        kind: Kind = "stopped" if red else "no_plan"
        files = (sprint.planning.failure_log,) if sprint.planning.failure_log else ()
        return Need(
            kind=kind, sprint=sprint.id, why=sprint.planning.failure, commands=ways, files=files
        )
    if sprint.phase == "ended" or running:
        return None
    if sprint.availability.pause_reason:
        money = f" --budget {2 * sprint.settings.budget_usd:g}"
        more = (
            resume + money if sprint.availability.pause_reason.startswith("the budget") else resume
        )
        return Need(
            kind="halted", sprint=sprint.id, why=sprint.availability.pause_reason, commands=(more,)
        )
    if sprint.phase == "approval":
        why = f"the plan of {_tasks(len(state.tasks))} waits for your yes"
        if sprint.plan_declined:
            why = f"the plan was declined: {sprint.plan_declined} closed issue #{sprint.plan_issue}"
        steps = (resume, f"{resume} --edit", f"caloron discard {sprint.id}{options}")
        return Need(kind="approval", sprint=sprint.id, why=why, commands=steps)
    if sprint.phase == "retro":
        why = "it was stopped before its retro was written"
        return Need(kind="resume", sprint=sprint.id, why=why, commands=(resume,))
    left = sum(t.status is not Status.DONE for t in state.tasks.values())
    why = f"it was stopped with {_tasks(left)} to do" if left else "it was stopped before its plan"
    return Need(kind="resume", sprint=sprint.id, why=why, commands=(resume,))
