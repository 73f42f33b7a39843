"""One line for every task that is not done: why nothing happens, or what is happening."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caloron.domain.pauses import busy_slots, why_paused
from caloron.domain.status import Status

if TYPE_CHECKING:
    from caloron.domain.views import SprintView, StateView, TaskView

_DOING = {
    "implement": "an agent is writing the change",
    "check": "an agent is checking",
    "review": "a reviewer is reading it",
    "fix": "an agent is fixing it",
    "resolve": "an agent is resolving a conflict with main",
    "verify": "its merged result is being verified",
}
_TAKEN_OVER = "the finished change is being checked and taken over"
#: The same once the process has ended.
_ENDED = {
    "implement": _TAKEN_OVER,
    "fix": _TAKEN_OVER,
    "resolve": _TAKEN_OVER,
    "check": "the answer of the check is being read",
    "review": "the answer of the reviewer is being read",
    "verify": "the result of its verification is being read",
}


def why(state: StateView, task: TaskView, now: float = 0.0) -> str:
    """Why this task is not done, in one line; empty when it is.

    A limit of a provider that has passed by `now` is no reason any more.
    """
    match task.status:
        case Status.DONE:
            return ""
        case Status.PENDING:
            return _why_pending(state, task)
        case Status.READY:
            return _why_ready(state, task)
        case Status.IN_PROGRESS | Status.IN_REVIEW:
            return _why_active(state, task, now)
        case Status.ESCALATED:
            return f"{task.reason}; {_how_to_release(task)}"
        case Status.BLOCKED | Status.CANCELLED:
            return task.reason
    raise AssertionError(task.status)


def why_sprint(sprint: SprintView, now: float = 0.0) -> str:
    """Why there are no tasks yet, or why there will be none."""
    if sprint.stopped:
        # A verification of main comes before the plan: it is the reason by itself.
        return (
            sprint.stopped if sprint.stopped.startswith("main ") else f"no plan: {sprint.stopped}"
        )
    if sprint.halted:
        return sprint.halted
    if sprint.phase == "planning":
        if sprint.baseline_work:
            return "main is being verified before anything is begun"
        if sprint.po and (paused := why_paused(sprint, None, now)):
            return paused
        return "the planner is at work" if sprint.po else "waiting for a plan"
    if sprint.phase == "retro":
        return "a model looks back at the sprint"
    return _waits_for_yes(sprint) if sprint.phase == "approval" else ""


def _waits_for_yes(sprint: SprintView) -> str:
    if sprint.plan_declined:
        return (
            f"the plan was declined: {sprint.plan_declined} closed issue #{sprint.plan_issue};"
            " open it again, or go on with `caloron resume --yes`"
        )
    if sprint.plan_issue is None:
        return "the plan waits for your yes"
    return f"the plan waits for your yes: comment `caloron:approve` on issue #{sprint.plan_issue}"


def _why_pending(state: StateView, task: TaskView) -> str:
    if state.sprint.phase == "approval":
        return _waits_for_yes(state.sprint)
    missing = [d for d in task.plan.depends_on if state.tasks[d].status is not Status.DONE]
    return f"waiting for {', '.join(missing)}" if missing else "about to be ready"


def _why_ready(state: StateView, task: TaskView) -> str:
    if task.issue is None:
        return "waiting for its issue on the forge"
    busy, slots = busy_slots(state), state.sprint.parallel
    if busy >= slots:
        return f"waiting for a free slot ({busy} of {slots} busy)"
    begun = [t for t in state.tasks.values() if t.status in (Status.IN_PROGRESS, Status.IN_REVIEW)]
    if len(begun) >= slots:
        return f"waiting until one of {len(begun)} changes that were begun is merged"
    return "about to start"


def _why_active(state: StateView, task: TaskView, now: float) -> str:
    if on_its_way := _why_landed(task) or _why_in_train(state, task):
        return on_its_way
    if task.work:
        if task.work.item in state.queued:
            return _why_queued(state, task, task.work.role, now)
        if task.work.item in state.ended:
            return _ENDED[task.work.role]
        line = _DOING[task.work.role]
        if task.work.role in ("review", "fix"):
            line += f", round {task.work.round}"
        if task.interventions:
            line += f" (silent: {task.interventions} interventions)"
        return line
    if task.merging:
        return "being merged"
    if task.status is Status.IN_PROGRESS:
        return (
            "its branch is being pushed" if task.pushed != task.head else "opening a pull request"
        )
    return _why_idle(state, task)


def _why_idle(state: StateView, task: TaskView) -> str:
    if task.waits and task.waits.head == task.head:
        return task.waits.what
    if task.judged == task.head:
        landed = [other.plan.id for other in state.tasks.values() if other.landed]
        behind = f", after the merge of {landed[0]} is settled" if landed else ""
        return f"approved: waiting for its turn to merge{behind}"
    return "waiting for a review"


def _why_landed(task: TaskView) -> str:
    """What becomes of a merge whose result nobody had verified."""
    if not task.landed:
        return ""
    if task.revert is None:
        return "merged, main is being verified again"
    if not task.revert.merged:
        return "merged, but main is red with it: it is being taken out again"
    return "taken out of main again: about to go back to its agent"


def _why_in_train(state: StateView, task: TaskView) -> str:
    """Who it is verified and merged with; empty: it goes alone."""
    train = state.sprint.train
    names = [member.task for member in train.members] if train else []
    others = [name for name in names if name != task.plan.id]
    if not others or len(others) == len(names):
        return ""
    step = "waiting for its turn to merge"
    if task.waits and task.waits.head == task.head:
        step = task.waits.what
    if task.merging:
        step = "being merged"
    elif train and train.item:
        step = "being verified together"
    return f"in a train of {len(names)} with {', '.join(others)}: {step}"


def _why_queued(state: StateView, task: TaskView, role: str, now: float) -> str:
    if state.sprint.halted:
        return f"its {role} waits: {state.sprint.halted}"
    paused = why_paused(state.sprint, task, now)
    if paused and role != "verify":
        return f"its {role} waits: {paused}"
    return f"its {role} waits for a free slot"


def _how_to_release(task: TaskView) -> str:
    place = task.issue if task.escalation_issue is None else task.escalation_issue
    if place is None:
        return "edit its status in the sprint's file to go on"
    return f"comment `resolved` on issue #{place} to go on"
