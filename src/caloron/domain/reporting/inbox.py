"""The inbox: what waits for a person, each with the commands that let it go on."""

from __future__ import annotations

import shlex
from typing import Literal

import msgspec

from caloron.domain.model.sprint import State
from caloron.domain.model.status import Status, Step
from caloron.domain.model.task import Task
from caloron.domain.reporting.explain import why

Kind = Literal[
    "escalated", "review", "approval", "halted", "stopped", "no_plan", "resume", "discard", "apply"
]


class InboxItem(msgspec.Struct, frozen=True, kw_only=True):
    """A task or a sprint that cannot go on without a person."""

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


def inbox_items(state: State, *, running: bool, options: str = "") -> tuple[InboxItem, ...]:
    """Return the inbox of a sprint; `options` end each command.

    `running`: an engine works on the sprint, so a released task goes on by itself.
    """
    resume = f"caloron resume {state.sprint.id}{options}"
    item = _of_sprint(state, resume, options, running=running)
    again = () if running else (resume,)
    items = [item] if item else []
    for task in state.tasks.values():
        if task.status is Status.ESCALATED:
            items.append(_escalated(state, task, again, options))
        elif task.step is Step.AWAITING_APPROVAL:
            items.append(_review(state, task, again, options))
    return tuple(items)


def _review(state: State, task: Task, resume: tuple[str, ...], options: str) -> InboxItem:
    pull = task.links.pull
    return InboxItem(
        kind="review",
        sprint=state.sprint.id,
        task=task.id,
        title=task.plan.title,
        why=why(state, task),
        commands=(
            f"caloron pr show {pull}{options}",
            f"caloron pr review {pull} --approve{options}",
            *resume,
        ),
        holds=_held_by(state, task),
    )


def _escalated(state: State, task: Task, resume: tuple[str, ...], options: str) -> InboxItem:
    number = task.links.issue if task.escalation.issue is None else task.escalation.issue
    commands: list[str] = []
    if task.attempts.work_count:
        commands.append(f"caloron logs {task.id} --sprint {state.sprint.id}{options}")
    if number is not None:
        commands.append(f"caloron issue comment {number} resolved{options}")
    return InboxItem(
        kind="escalated",
        sprint=state.sprint.id,
        task=task.id,
        title=task.plan.title,
        why=task.reason,
        commands=(*commands, *resume),
        holds=_held_by(state, task),
    )


def _held_by(state: State, task: Task) -> tuple[str, ...]:
    """Return the tasks that wait and depend on this one, directly or through others."""
    blocked = {task.id}
    for _ in state.tasks:
        blocked |= {
            t.id
            for t in state.tasks.values()
            if t.status in (Status.BLOCKED, Status.PENDING) and blocked & set(t.plan.depends_on)
        }
    return tuple(t for t in state.tasks if t in blocked and t != task.id)


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def _of_sprint(state: State, resume: str, options: str, *, running: bool) -> InboxItem | None:
    """Return what stops the sprint as a whole."""
    sprint = state.sprint

    def item(kind: Kind, why: str, *commands: str, files: tuple[str, ...] = ()) -> InboxItem | None:
        return InboxItem(kind=kind, sprint=sprint.id, why=why, commands=commands, files=files)

    ended = sprint.phase == "ended" or running
    discard = f"caloron discard {sprint.id}{options}"
    if sprint.discard.by:
        return None if ended else item("discard", "its discard was interrupted", discard)
    if sprint.planning.failure:
        planning = sprint.planning
        files = (planning.failure_log,) if planning.failure_log else ()
        if planning.failure_kind == "red_main":
            allow = f"{resume} --allow-red"
            return item("stopped", planning.failure, resume, allow, files=files)
        # A goal that begins with `-` must stand behind `--`, and the options before it.
        ahead, behind = (f"{options} --", "") if sprint.goal.startswith("-") else ("", options)
        again = f"caloron sprint{ahead} {shlex.quote(sprint.goal)}{behind}"
        return item("no_plan", planning.failure, resume, again, files=files)
    if ended:
        return None
    if reason := sprint.availability.pause_reason:
        budget = f" --budget {2 * sprint.settings.budget_usd:g}"
        return item("halted", reason, resume + (budget if reason.startswith("the budget") else ""))
    if sprint.phase == "approval":
        why = f"the plan of {_tasks(len(state.tasks))} waits for your approval"
        if sprint.plan_declined:
            why = f"the plan was declined: {sprint.plan_declined} closed issue #{sprint.plan_issue}"
        return item("approval", why, resume, f"{resume} --edit", discard)
    if sprint.phase == "retro":
        return item("resume", "stopped before its retro was written", resume)
    left = sum(t.status is not Status.DONE for t in state.tasks.values())
    why = f"stopped with {_tasks(left)} to do" if left else "stopped before its plan"
    return item("resume", why, resume)
