"""One line for every task that is not done: why it waits, or what is happening."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from caloron.domain.model.roles import ROLES, Role
from caloron.domain.model.status import Status, Step
from caloron.domain.reporting.waiting import busy_slots, why_paused

if TYPE_CHECKING:
    from caloron.domain.model.sprint import Sprint, State
    from caloron.domain.model.task import Task


def why(state: State, task: Task, now: float = 0.0) -> str:
    """Return why this task is not done, in one line; empty when it is.

    A limit of a provider that has passed by `now` is no reason any more.
    """
    in_train = _why_in_train(state, task) if task.status is Status.IN_REVIEW else ""
    line = in_train or _LINES.get(task.step, _why_working)
    return line if isinstance(line, str) else line(state, task, now)


def why_sprint(sprint: Sprint, now: float = 0.0) -> str:
    """Return why there are no tasks yet, or why there will be none."""
    if sprint.planning.failure:
        # A verification of main comes before the plan and needs no other words.
        failure = sprint.planning.failure
        return failure if failure.startswith("main ") else f"no plan: {failure}"
    if sprint.availability.pause_reason:
        return sprint.availability.pause_reason
    if sprint.phase == "planning":
        if sprint.main_health.work:
            return "main is being verified before the sprint starts"
        if sprint.planning.work and (paused := why_paused(sprint, None, now)):
            return paused
        return "the planner is working" if sprint.planning.work else "waiting for a plan"
    if sprint.phase == "retro":
        return "a model is writing the retro"
    return _waits_for_yes(sprint) if sprint.phase == "approval" else ""


def _waits_for_yes(sprint: Sprint) -> str:
    if sprint.plan_declined:
        return (
            f"the plan was declined: {sprint.plan_declined} closed issue #{sprint.plan_issue};"
            " reopen it, or continue with `caloron resume --yes`"
        )
    if sprint.plan_issue is None:
        return "the plan waits for your approval"
    return (
        f"the plan waits for your approval: comment `caloron:approve` on issue #{sprint.plan_issue}"
    )


def _reason(_state: State, task: Task, _now: float) -> str:
    return task.reason


def _why_pending(state: State, task: Task, _now: float) -> str:
    if state.sprint.phase == "approval":
        return _waits_for_yes(state.sprint)
    missing = [d for d in task.plan.depends_on if state.tasks[d].status is not Status.DONE]
    return f"waiting for {', '.join(missing)}" if missing else "about to be ready"


def _why_ready(state: State, task: Task, _now: float) -> str:
    if task.links.issue is None:
        return "waiting for its issue on the forge"
    busy, slots = busy_slots(state), state.sprint.settings.parallel
    if busy >= slots:
        return f"waiting for a free slot ({busy} of {slots} busy)"
    begun = [t for t in state.tasks.values() if t.status in (Status.IN_PROGRESS, Status.IN_REVIEW)]
    if len(begun) >= slots:
        return f"waiting until one of {len(begun)} started changes is merged"
    return "about to start"


def _why_working(state: State, task: Task, now: float) -> str:
    work = task.work
    if work is None:
        return task.reason
    spec = ROLES[work.role]
    if work.item in state.queued:
        return _why_queued(state, task, work.role, now)
    if work.item in state.ended:
        return spec.ended
    line = f"{spec.running}, round {work.round}" if spec.shows_round else spec.running
    silent = task.supervision.interventions
    return f"{line} (silent: {silent} interventions)" if silent else line


def _why_publishing(_state: State, task: Task, _now: float) -> str:
    pushed = task.change.pushed == task.change.head
    return "opening a pull request" if pushed else "pushing its branch"


def _why_approval(_state: State, task: Task, _now: float) -> str:
    return f"reviewed: waiting for a person to approve pull request #{task.links.pull}"


def _why_in_queue(state: State, _task: Task, _now: float) -> str:
    unsettled = [other.plan.id for other in state.tasks.values() if other.merge.unverified]
    behind = f", after the merge of {unsettled[0]} is settled" if unsettled else ""
    return f"approved: waiting for its turn to merge{behind}"


def _why_waiting(_state: State, task: Task, _now: float) -> str:
    return task.merge.waiting.what if task.merge.waiting else task.reason


def _why_in_train(state: State, task: Task) -> str:
    """Return the other tasks of its merge train, and what the train does; empty: no train."""
    train = state.sprint.merge_train
    names = [member.task for member in train.members] if train else []
    others = [name for name in names if name != task.plan.id]
    if not others or len(others) == len(names):
        return ""
    step = "waiting for its turn to merge"
    if task.merge.waiting and task.merge.waiting.head == task.change.head:
        step = task.merge.waiting.what
    if task.merge.merging:
        step = "being merged"
    elif train and train.item:
        step = "being verified together"
    return f"in a train of {len(names)} with {', '.join(others)}: {step}"


def _why_queued(state: State, task: Task, role: Role, now: float) -> str:
    if state.sprint.availability.pause_reason:
        return f"its {role} waits: {state.sprint.availability.pause_reason}"
    paused = why_paused(state.sprint, task, now)
    if paused and ROLES[role].needs_agent:
        return f"its {role} waits: {paused}"
    return f"queued: {role}"


def _why_escalated(_state: State, task: Task, _now: float) -> str:
    issue = task.links.issue if task.escalation.issue is None else task.escalation.issue
    if issue is None:
        return f"{task.reason}; edit its status in the sprint's file to continue"
    return f"{task.reason}; comment `resolved` on issue #{issue} to continue"


#: Steps of work have none: its role says what happens.
_LINES: dict[Step, str | Callable[[State, Task, float], str]] = {
    Step.WAITING: _why_pending,
    Step.BLOCKED: _reason,
    Step.READY: _why_ready,
    Step.PUBLISHING: _why_publishing,
    Step.REVIEW_QUEUED: "waiting for a review",
    Step.MAIN_SUSPECT: _why_waiting,
    Step.POSTING_VERDICT: "reviewed: the verdict is being posted",
    Step.AWAITING_APPROVAL: _why_approval,
    Step.MERGE_QUEUED: _why_in_queue,
    Step.WAITING_FOR_CI: _why_waiting,
    Step.MERGING: "being merged",
    Step.MERGED_UNVERIFIED: "merged, main is being verified again",
    Step.REVERTING: "merged, but main fails with it: being reverted",
    Step.REVERTED: "reverted: about to go back to its agent",
    Step.ESCALATED: _why_escalated,
    Step.DONE: "",
    Step.CANCELLED: _reason,
}
