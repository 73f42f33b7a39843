"""The merge queue: approved changes are verified on top of main and merged, one at a time."""

from __future__ import annotations

import msgspec

from caloron.domain.model.effects import Merge
from caloron.domain.model.facts import EffectFailed
from caloron.domain.model.merge import Member
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task
from caloron.domain.reporting import forge_texts
from caloron.domain.rules import merge_train, post_merge_check
from caloron.domain.rules.evaluation import Evaluation
from caloron.domain.rules.verdicts import approved_head
from caloron.domain.rules.verification import reject

#: Merges of one head that came too late; more of them means that something else is wrong.
_MAX_STALE = 5


def change_missing(_evaluation: Evaluation, task: Task) -> bool:
    """The task is in review without a commit or without a pull request."""
    change = task.change
    return not change.head or (task.links.pull is None and not change.is_empty)


def escalate_missing(evaluation: Evaluation, task: Task) -> None:
    """Escalate: no verdict could be posted, so every review would be repeated and paid again."""
    missing = "pull request" if task.change.head else "commit"
    evaluation.escalate(task, f"it is in review without a {missing}", held=None)
    task.escalation.resume_as = Status.PENDING


def not_verified(_evaluation: Evaluation, task: Task) -> bool:
    """The head was not verified on top of main yet."""
    return not task.change.is_empty and not _is_verified(task)


def start_verification(evaluation: Evaluation, task: Task) -> None:
    """Verify the head, merged into main."""
    evaluation.start(task, evaluation.new_work(task, "verify", head=task.change.head))


def not_reviewed(evaluation: Evaluation, task: Task) -> bool:
    """There is no verdict on the head yet."""
    return task.review.posted_for != task.change.head and not approved_head(evaluation, task)


def start_review(evaluation: Evaluation, task: Task) -> None:
    """Have the head reviewed, with the output of its verification."""
    if task.change.head not in task.review.reviewed:
        task.review.reviewed = (*task.review.reviewed, task.change.head)
    log = task.merge.verified.log if task.merge.verified else ""
    evaluation.start(task, evaluation.new_work(task, "review", head=task.change.head, log=log))


def advance_merge_queue(evaluation: Evaluation) -> None:
    """Let the next approved changes through: merge what is verified on this very main."""
    if post_merge_check.holds_lane(evaluation.state):
        merge_train.disband(evaluation)
        return
    tasks = list(evaluation.state.tasks.values())
    if any(
        _occupies(evaluation, task) for task in tasks if not merge_train.is_member(evaluation, task)
    ):
        return
    standing = {Member(t.id, t.change.head) for t in tasks if _stands(evaluation, t)}
    if merge_train.advance(evaluation, standing, lambda task: _merge(evaluation, task)):
        return
    waiting = sorted(
        (t for t in tasks if _wants_merge(evaluation, t)),
        key=lambda t: (-evaluation.critical_path(t), t.times.changed_at),
    )
    fresh = next((t for t in waiting if _is_fresh(evaluation, t)), None)
    if fresh:
        _merge(evaluation, fresh)
    elif evaluation.sprint.merge_train is None and waiting:
        _verify_next(evaluation, waiting)


def _verify_next(evaluation: Evaluation, waiting: list[Task]) -> None:
    """Several as one batch; who cannot be in one, or has none to be with, alone."""
    together = [
        t
        for t in waiting
        if t.merge.batch_conflict != t.change.head and not _is_slow(evaluation, t)
    ]
    if len(together) > 1:
        merge_train.form(evaluation, together)
        merge_train.advance(
            evaluation,
            {Member(t.id, t.change.head) for t in together},
            lambda t: _merge(evaluation, t),
        )
    else:
        evaluation.start(
            waiting[0], evaluation.new_work(waiting[0], "verify", head=waiting[0].change.head)
        )


def _stands(evaluation: Evaluation, task: Task) -> bool:
    """Whether a change may be merged: nobody withdrew it."""
    batch = task.work is not None and bool(task.work.batch)
    free = task.work is None or batch
    return task.status is Status.IN_REVIEW and free and bool(approved_head(evaluation, task))


def _occupies(evaluation: Evaluation, task: Task) -> bool:
    verifying = task.work is not None and task.work.role == "verify"
    busy = bool(task.merge.merging) or (verifying and bool(approved_head(evaluation, task)))
    return task.status is Status.IN_REVIEW and busy


def _wants_merge(evaluation: Evaluation, task: Task) -> bool:
    ready = _stands(evaluation, task) and task.work is None and _is_verified(task)
    waits = post_merge_check.waits_for_ci(evaluation, task, task.change.head)
    return ready and not waits and not merge_train.is_member(evaluation, task)


def _is_slow(evaluation: Evaluation, task: Task) -> bool:
    """Whether the forge's CI takes so long that no others should wait with it."""
    waits = task.merge.waiting
    since = waits.since if waits and waits.head == task.change.head else evaluation.now
    return evaluation.now - since > merge_train.CI_PATIENCE_S


def _is_verified(task: Task) -> bool:
    verified = task.merge.verified
    return verified is not None and verified.passes and verified.head == task.change.head


def _is_fresh(evaluation: Evaluation, task: Task) -> bool:
    return task.merge.verified is not None and task.merge.verified.base == evaluation.main_commit()


def _merge(evaluation: Evaluation, task: Task) -> None:
    if task.merge.verified is None or task.links.pull is None:
        return
    task.merge.merging = task.change.head
    base, tree = task.merge.verified.base, task.merge.verified.tree
    evaluation.do(
        Merge(
            key=post_merge_check.merge_key(task.links.pull, task.change.head, base),
            task=task.id,
            pull=task.links.pull,
            head=task.change.head,
            base=base,
            message=forge_texts.merge_message(task.links.pull, forge_texts.pull_title(task)),
            tree=tree,
        )
    )


def merge_failed(evaluation: Evaluation, task: Task, fact: EffectFailed) -> bool:
    """What follows from a merge that the forge did not make; False: a person has to decide."""
    if fact.refusal == "waiting":
        return _ask_later(evaluation, task, fact.message)
    if fact.refusal == "conflict" and task.status is Status.IN_REVIEW:
        # The forge is stricter than our own merge was: only a new head can get past it.
        task.merge.merging, task.merge.verified = "", None
        evaluation.move(task, Status.IN_PROGRESS, fact.message)
        evaluation.start(
            task, evaluation.new_work(task, "resolve", head=task.change.head, reason=fact.message)
        )
    elif fact.refusal == "checks" and task.status is Status.IN_REVIEW:
        # As after a red verification, an approval does not make this go away.
        task.merge.merging = ""
        reject(evaluation, task, task.change.head, fact.message, onto_main=True)
    elif fact.refusal != "refused" and task.merge.stale_merges < _MAX_STALE:
        # Main or the branch moved in between: verify what is there now, and try again.
        _outdate(task)
        merge_train.outdate(evaluation, task)
        task.merge.stale_merges += 1
    else:
        return False
    return True


def _ask_later(evaluation: Evaluation, task: Task, message: str) -> bool:
    """The forge's CI has not ended: others may go first, and it is asked again after a while."""
    if not post_merge_check.wait_for_ci(evaluation, task, task.change.head, message):
        return False
    if merge_train.is_member(evaluation, task):
        # Its place in the batch is kept; alone it was not verified on this main.
        _outdate(task)
    task.merge.merging = ""
    return True


def _outdate(task: Task) -> None:
    """What was verified was green, but not as it would be merged now."""
    task.merge.merging = ""
    if task.merge.verified:
        task.merge.verified = msgspec.structs.replace(task.merge.verified, base="")
