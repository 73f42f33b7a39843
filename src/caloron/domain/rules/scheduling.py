"""The start of tasks: dependencies are done, the issue exists, and a slot is free."""

from __future__ import annotations

from caloron.domain.model.status import HOLDS_DEPENDENTS, SETTLED, Status, Step
from caloron.domain.model.task import Task
from caloron.domain.rules import post_merge_check, verification
from caloron.domain.rules.evaluation import Evaluation
from caloron.domain.rules.results import open_pull
from caloron.domain.rules.verdicts import approved_head

_STARTED = (Status.IN_PROGRESS, Status.IN_REVIEW)


def _dependencies(evaluation: Evaluation, task: Task) -> list[Task]:
    return [evaluation.state.tasks[name] for name in task.plan.depends_on]


def dependency_held(evaluation: Evaluation, task: Task) -> list[Task]:
    """A dependency is escalated, blocked or cancelled."""
    return [d for d in _dependencies(evaluation, task) if d.status in HOLDS_DEPENDENTS]


def block(evaluation: Evaluation, task: Task, blocking: list[Task]) -> None:
    """Block the task."""
    if task.status is Status.READY:
        evaluation.move(task, Step.WAITING)
    evaluation.move(task, Step.BLOCKED, f"held by {', '.join(d.id for d in blocking)}")


def no_dependency_held(evaluation: Evaluation, task: Task) -> bool:
    """No dependency is escalated, blocked or cancelled any more."""
    return not dependency_held(evaluation, task)


def unblock(evaluation: Evaluation, task: Task, _matched: bool) -> None:
    """Let the task wait for its dependencies again."""
    evaluation.move(task, Step.WAITING, "no longer held")


def dependencies_done(evaluation: Evaluation, task: Task) -> bool:
    """All dependencies are done."""
    return all(d.status is Status.DONE for d in _dependencies(evaluation, task))


def make_ready(evaluation: Evaluation, task: Task, _matched: bool) -> None:
    """Let the task wait for a slot."""
    evaluation.move(task, Step.READY, "dependencies are done" if task.plan.depends_on else "")


def start_ready(evaluation: Evaluation) -> None:
    """Start ready tasks while slots are free, those on the longest chain first.

    A change keeps its slot until it is approved: its review and its fixes must not wait for agents
    that start others. Approved changes need no agent; there are at most as many of them as slots.
    A task whose issue is still being created keeps its place, and so its slot.
    """
    parallel = evaluation.sprint.settings.parallel
    started = [
        task for task in evaluation.state.tasks.values() if _moves_by_itself(evaluation, task)
    ]
    unfinished = [task for task in started if not approved_head(evaluation, task)]
    free = min(parallel - len(unfinished), 2 * parallel - len(started))
    ready = [task for task in evaluation.state.tasks.values() if task.status is Status.READY]
    for task in sorted(ready, key=lambda t: -evaluation.critical_path(t)):
        if task.links.issue is None:
            free -= evaluation.has_effects(task)
        elif task.change.head:
            evaluation.move(task, Step.PUBLISHING, "goes on with what its branch has")
            if task.links.pull is None:
                open_pull(evaluation, task)
        elif free > 0:
            free -= 1
            evaluation.apply(task.id, _start, task)


def _moves_by_itself(evaluation: Evaluation, task: Task) -> bool:
    """True if the task was started and ends without a person and without the forge's CI.

    No rule leaves a task without work, effects and approval: a damaged state costs no slot.
    """
    if task.status not in _STARTED:
        return False
    if task.work or task.merge.wait_of(task.change.head):
        return task.work is not None
    moves = evaluation.has_effects(task) or bool(approved_head(evaluation, task))
    return moves and not needs_person(evaluation, task)


def _start(evaluation: Evaluation, task: Task) -> None:
    is_check = task.plan.kind == "check"
    evaluation.move(task, Step.CHECKING if is_check else Step.IMPLEMENTING)
    evaluation.start_new(task, "check" if is_check else "implement")
    evaluation.add_label(task, "assigned")


def needs_person(evaluation: Evaluation, task: Task) -> bool:
    """True if the task is over, or if it cannot move before a person acts."""
    if task.status is Status.DONE and task.merge.unverified and task.merge.revert:
        # It is being reverted.
        return False
    if task.step is Step.WAITING:
        begun = (d for d in _dependencies(evaluation, task) if d.status is not Status.DONE)
        return any(needs_person(evaluation, dependency) for dependency in begun)
    stuck = (
        task.status is Status.IN_REVIEW
        and not task.work
        and post_merge_check.is_stuck(evaluation.state)
    )
    awaits = task.status in SETTLED or task.step is Step.AWAITING_APPROVAL
    return awaits or stuck or verification.waits_for_main(evaluation.sprint, task)
