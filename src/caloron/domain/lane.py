"""The merge lane: approved changes are verified on top of main and merged, one at a time."""

from __future__ import annotations

from caloron.domain.actions import Merge
from caloron.domain.sprint import Task
from caloron.domain.status import Status
from caloron.domain.turn import Turn
from caloron.domain.verdicts import approved_head


def advance_reviews(turn: Turn) -> None:
    """Verify each new head, then have it reviewed with the verification's output at hand."""
    for task in turn.state.tasks.values():
        if task.status is not Status.IN_REVIEW or task.work or task.merging:
            continue
        if not task.empty and not _is_verified(task):
            turn.start(task, turn.new_work(task, "verify", head=task.head))
        elif task.judged != task.head and not approved_head(turn, task):
            _review(turn, task)


def _review(turn: Turn, task: Task) -> None:
    if task.head not in task.reviewed:
        task.reviewed = (*task.reviewed, task.head)
    log = task.verified.log if task.verified else ""
    turn.start(task, turn.new_work(task, "review", head=task.head, log=log))


def advance_lane(turn: Turn) -> None:
    """Let the next approved change through: merge what is verified on this very main."""
    if any(_occupies(turn, task) for task in turn.state.tasks.values()):
        return
    waiting = [t for t in turn.state.tasks.values() if _wants_merge(turn, t)]
    if not waiting:
        return
    task = max(waiting, key=lambda t: (_is_fresh(turn, t), t.chain, -t.changed_at))
    if _is_fresh(turn, task):
        _merge(turn, task)
    else:
        turn.start(task, turn.new_work(task, "verify", head=task.head))


def _occupies(turn: Turn, task: Task) -> bool:
    verifying = task.work is not None and task.work.role == "verify"
    return bool(task.merging) or (verifying and bool(approved_head(turn, task)))


def _wants_merge(turn: Turn, task: Task) -> bool:
    return (
        task.status is Status.IN_REVIEW
        and task.work is None
        and _is_verified(task)
        and bool(approved_head(turn, task))
    )


def _is_verified(task: Task) -> bool:
    verified = task.verified
    return verified is not None and verified.passes and verified.head == task.head


def _is_fresh(turn: Turn, task: Task) -> bool:
    return task.verified is not None and task.verified.base == turn.main_commit()


def _merge(turn: Turn, task: Task) -> None:
    if task.verified is None or task.pull is None:
        return
    task.merging = task.head
    base = task.verified.base
    turn.do(
        Merge(
            key=f"merge/{task.pull}/{task.head}/{base}",
            task=task.id,
            pull=task.pull,
            head=task.head,
            base=base,
            message=f"Merge pull request #{task.pull}: [{task.id}] {task.plan.title}",
        )
    )
