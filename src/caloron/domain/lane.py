"""The merge lane: approved changes are verified on top of main and merged, one at a time."""

from __future__ import annotations

import msgspec

from caloron.domain import doubts, landing, texts, train
from caloron.domain.actions import Merge
from caloron.domain.facts import EffectFailed
from caloron.domain.merging import Member
from caloron.domain.sprint import Task
from caloron.domain.status import Status
from caloron.domain.turn import Turn
from caloron.domain.verdicts import approved_head
from caloron.domain.verifying import reject

#: Merges of one head that came too late; more of them means that something else is wrong.
_MAX_STALE = 5


def advance_reviews(turn: Turn) -> None:
    """Verify each new head, then have it reviewed with the verification's output at hand."""
    doubts.advance(turn)
    for task in turn.state.tasks.values():
        busy = task.work or task.merging or task.landed or task.doubt
        if task.status is Status.IN_REVIEW and not busy:
            turn.apply(task.id, _verify_or_review, task)


def _verify_or_review(turn: Turn, task: Task) -> None:
    if not task.head or (task.pull is None and not task.empty):
        # No verdict could be posted, so it would be reviewed, and paid for, again and again.
        missing = "pull request" if task.head else "commit"
        turn.escalate(task, f"it is in review without a {missing}", held=None)
        task.held_from = Status.PENDING
    elif not task.empty and not _is_verified(task):
        turn.start(task, turn.new_work(task, "verify", head=task.head))
    elif task.judged != task.head and not approved_head(turn, task):
        _review(turn, task)


def _review(turn: Turn, task: Task) -> None:
    if task.head not in task.reviewed:
        task.reviewed = (*task.reviewed, task.head)
    log = task.verified.log if task.verified else ""
    turn.start(task, turn.new_work(task, "review", head=task.head, log=log))


def advance_lane(turn: Turn) -> None:
    """Let the next approved changes through: merge what is verified on this very main."""
    landing.advance(turn)
    if landing.holds_lane(turn.state):
        train.disband(turn)
        return
    tasks = list(turn.state.tasks.values())
    if any(_occupies(turn, task) for task in tasks if not train.is_member(turn, task)):
        return
    standing = {Member(t.id, t.head) for t in tasks if _stands(turn, t)}
    if train.advance(turn, standing, lambda task: _merge(turn, task)):
        return
    waiting = sorted(
        (t for t in tasks if _wants_merge(turn, t)), key=lambda t: (-t.chain, t.changed_at)
    )
    fresh = next((t for t in waiting if _is_fresh(turn, t)), None)
    if fresh:
        _merge(turn, fresh)
    elif turn.sprint.train is None and waiting:
        _verify_next(turn, waiting)


def _verify_next(turn: Turn, waiting: list[Task]) -> None:
    """Several as one batch; who cannot be in one, or has none to be with, alone."""
    together = [t for t in waiting if t.alone != t.head and not _is_slow(turn, t)]
    if len(together) > 1:
        train.form(turn, together)
        train.advance(turn, {Member(t.id, t.head) for t in together}, lambda t: _merge(turn, t))
    else:
        turn.start(waiting[0], turn.new_work(waiting[0], "verify", head=waiting[0].head))


def _stands(turn: Turn, task: Task) -> bool:
    """Whether a change may be merged: nobody withdrew it."""
    batch = task.work is not None and bool(task.work.heads)
    free = task.work is None or batch
    return task.status is Status.IN_REVIEW and free and bool(approved_head(turn, task))


def _occupies(turn: Turn, task: Task) -> bool:
    verifying = task.work is not None and task.work.role == "verify"
    busy = bool(task.merging) or (verifying and bool(approved_head(turn, task)))
    return task.status is Status.IN_REVIEW and busy


def _wants_merge(turn: Turn, task: Task) -> bool:
    ready = _stands(turn, task) and task.work is None and _is_verified(task)
    waits = landing.waits_for_ci(turn, task, task.head)
    return ready and not waits and not train.is_member(turn, task)


def _is_slow(turn: Turn, task: Task) -> bool:
    """Whether the forge's CI takes so long that no others should wait with it."""
    waits = task.waits
    since = waits.since if waits and waits.head == task.head else turn.now
    return turn.now - since > train.CI_PATIENCE_S


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
            key=landing.merge_key(task.pull, task.head, base),
            task=task.id,
            pull=task.pull,
            head=task.head,
            base=base,
            message=texts.merge_message(task.pull, texts.pull_title(task)),
        )
    )


def merge_failed(turn: Turn, task: Task, fact: EffectFailed) -> bool:
    """What follows from a merge that the forge did not make; False: a person has to decide."""
    if fact.refusal == "waiting":
        return _ask_later(turn, task, fact.message)
    if fact.refusal == "conflict" and task.status is Status.IN_REVIEW:
        # The forge is stricter than our own merge was: only a new head can get past it.
        task.merging, task.verified = "", None
        turn.move(task, Status.IN_PROGRESS, fact.message)
        turn.start(task, turn.new_work(task, "resolve", head=task.head, reason=fact.message))
    elif fact.refusal == "checks" and task.status is Status.IN_REVIEW:
        # As after a red verification, an approval does not make this go away.
        task.merging = ""
        reject(turn, task, task.head, fact.message, onto_main=True)
    elif fact.refusal != "refused" and task.stale_merges < _MAX_STALE:
        # Main or the branch moved in between: verify what is there now, and try again.
        _outdate(task)
        train.outdate(turn, task)
        task.stale_merges += 1
    else:
        return False
    return True


def _ask_later(turn: Turn, task: Task, message: str) -> bool:
    """The forge's CI has not ended: others may go first, and it is asked again after a while."""
    if not landing.wait_for_ci(turn, task, task.head, message):
        return False
    if train.is_member(turn, task):
        # Its place in the batch is kept; alone it was not verified on this main.
        _outdate(task)
    task.merging = ""
    return True


def _outdate(task: Task) -> None:
    """What was verified was green, but not as it would be merged now."""
    task.merging = ""
    if task.verified:
        task.verified = msgspec.structs.replace(task.verified, base="")
