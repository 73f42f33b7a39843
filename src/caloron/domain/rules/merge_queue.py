"""The merge queue: approved changes are verified on top of main and merged, one at a time.

Several approved changes form a merge train: they are verified as one batch on top of main, then
merged in order. A red batch is halved until the change that breaks it is alone. What was verified
is a tree: a member counts as verified on the main that the merges before it made, if that main has
exactly the tree that was expected.

The way of a merge: this queue decides it, `engine/forge/operations.py` executes it after the
objections and the CI were checked (`merging.py`), the adapter puts the verified commit on main
(`forge/local/forge.py`, `forge/remote/merge.py`), `merging.py` reports what is on
main, and `post_merge_check.py` follows if its tree is not the verified one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from caloron.domain.model.facts import EffectDone, EffectFailed, WorkEnded
from caloron.domain.model.merge import LONGEST_TRAIN, Member, Outcome, Train, Verified
from caloron.domain.model.status import Status, Step
from caloron.domain.model.task import Task, Work
from caloron.domain.reporting import forge_texts
from caloron.domain.rules import post_merge_check
from caloron.domain.rules.evaluation import Evaluation
from caloron.domain.rules.verdicts import approved_head, send_back_or_escalate
from caloron.domain.rules.verification import reject_red

#: Merges of one head that came too late; more of them means that something else is wrong.
_MAX_STALE = 5
#: A member that waits longer for the forge's CI leaves the train, so that the others go on.
_CI_PATIENCE_S = 60.0

_replace = msgspec.structs.replace


def change_missing(_evaluation: Evaluation, task: Task) -> bool:
    """The task is in review without a commit or without a pull request."""
    change = task.change
    return not change.head or (task.links.pull is None and not change.is_empty)


def escalate_missing(evaluation: Evaluation, task: Task, _matched: bool) -> None:
    """Escalate: no verdict could be posted, so every review would be repeated and paid again."""
    missing = "pull request" if task.change.head else "commit"
    reason = f"it is in review without a {missing}"
    evaluation.escalate(task, reason, resume_as=Step.WAITING)


def not_verified(_evaluation: Evaluation, task: Task) -> bool:
    """The head was not verified on top of main yet."""
    return not task.change.is_empty and not _is_verified(task)


def start_verification(evaluation: Evaluation, task: Task, _matched: bool) -> None:
    """Verify the head, merged into main."""
    evaluation.start_new(task, "verify", head=task.change.head)


def not_reviewed(evaluation: Evaluation, task: Task) -> bool:
    """There is no verdict on the head yet."""
    return task.review.posted_for != task.change.head and not approved_head(evaluation, task)


def start_review(evaluation: Evaluation, task: Task, _matched: bool) -> None:
    """Have the head reviewed, with the output of its verification."""
    if task.change.head not in task.review.reviewed:
        task.review.reviewed = (*task.review.reviewed, task.change.head)
    log = task.merge.verified.log if task.merge.verified else ""
    evaluation.start(task, evaluation.new_work(task, "review", head=task.change.head, log=log))


def not_asked(_evaluation: Evaluation, task: Task) -> bool:
    """The head needs the approval of a person who was not asked yet."""
    return task.review.asked_for != task.change.head


def ask_for_approval(evaluation: Evaluation, task: Task, _matched: bool) -> None:
    """Ask in a comment on the pull request."""
    task.review.asked_for = task.change.head
    evaluation.note(task, "reviewed: a person has to approve it")
    text = (
        "A person has to approve this change before it is merged: approve this pull request, or"
        " comment `caloron:approve`. A request for changes sends it back to its agent."
    )
    evaluation.comment(task, "approval", task.change.head[:12], text, on=task.links.pull)


def advance_merge_queue(evaluation: Evaluation) -> None:
    """Let the next approved changes through: merge what is verified on this very main."""
    if post_merge_check.unsettled_merge(evaluation.state):
        _disband(evaluation)
        return
    tasks = list(evaluation.state.tasks.values())
    if any(_is_busy(evaluation, t) for t in tasks if not _is_member(evaluation, t)):
        return
    mergeable = {Member(t.id, t.change.head) for t in tasks if _is_mergeable(evaluation, t)}
    if _advance_train(evaluation, mergeable):
        return
    waiting = sorted(
        (t for t in tasks if _waits_in_queue(evaluation, t)),
        key=lambda t: (-evaluation.critical_path(t), t.times.changed_at),
    )
    fresh = next((t for t in waiting if _is_fresh(evaluation, t)), None)
    if fresh:
        _merge(evaluation, fresh)
    elif evaluation.sprint.merge_train is None and waiting:
        _verify_next(evaluation, waiting)


def _verify_next(evaluation: Evaluation, waiting: list[Task]) -> None:
    """Verify several changes as one batch; a change that fits into no batch, alone."""
    together = [
        Member(t.id, t.change.head)
        for t in waiting
        if t.merge.batch_conflict != t.change.head and not _is_slow(evaluation, t)
    ]
    if len(together) > 1:
        evaluation.sprint.merge_train = _new_train(together[:LONGEST_TRAIN])
        _advance_train(evaluation, together)
    else:
        evaluation.start_new(waiting[0], "verify", head=waiting[0].change.head)


def _is_mergeable(evaluation: Evaluation, task: Task) -> bool:
    """True for an approved change that was not withdrawn."""
    free = task.work is None or bool(task.work.batch)
    return task.status is Status.IN_REVIEW and free and bool(approved_head(evaluation, task))


def _is_busy(evaluation: Evaluation, task: Task) -> bool:
    """True while main must not move, because the change is being merged or verified for that."""
    verifying = task.work is not None and task.work.role == "verify"
    busy = bool(task.merge.merging) or (verifying and bool(approved_head(evaluation, task)))
    return task.status is Status.IN_REVIEW and busy


def _waits_in_queue(evaluation: Evaluation, task: Task) -> bool:
    ready = _is_mergeable(evaluation, task) and task.work is None and _is_verified(task)
    waits = post_merge_check.waits_for_ci(evaluation, task, task.change.head)
    return ready and not waits and not _is_member(evaluation, task)


def _is_slow(evaluation: Evaluation, task: Task) -> bool:
    """True if the forge's CI takes so long that no others should wait with it."""
    wait = task.merge.wait_of(task.change.head)
    return wait is not None and evaluation.now - wait.since > _CI_PATIENCE_S


def _is_verified(task: Task) -> bool:
    verified = task.merge.verified_head(task.change.head)
    return verified is not None and verified.passes


def _is_fresh(evaluation: Evaluation, task: Task) -> bool:
    verified = task.merge.verified
    return verified is not None and verified.base == evaluation.state.main_commit()


def _merge(evaluation: Evaluation, task: Task) -> None:
    verified, pull = task.merge.verified, task.links.pull
    if verified and pull is not None:
        message = forge_texts.merge_message(evaluation.sprint, task, pull)
        post_merge_check.decide_merge(evaluation, task, pull, verified, message)


def merge_done(evaluation: Evaluation, task: Task, fact: EffectDone) -> None:
    """Compare the tree that is on main now with the one that was verified."""
    proof, head = task.merge.verified, task.merge.merging
    if proof is None or not head:
        return
    as_verified = bool(proof.tree) and fact.tree == proof.tree
    revert = task.merge.revert
    if revert and fact.key == post_merge_check.merge_key(revert.pull, head, proof.base):
        post_merge_check.revert_merged(evaluation, task, revert, sound=as_verified)
    elif task.merge.unverified or fact.key != post_merge_check.merge_key(
        task.links.pull, head, proof.base
    ):
        return
    else:
        _member_merged(evaluation, task, fact)
        if fact.by_us and not as_verified:
            task.merge.unverified = fact.commit
    task.merge.merging = ""
    if as_verified and proof.ok and fact.commit:
        evaluation.sprint.main_health.last_green = fact.commit


def merge_failed(evaluation: Evaluation, task: Task, fact: EffectFailed) -> bool:
    """Handle a merge that the forge did not make; False: a person has to decide."""
    if fact.refusal == "waiting":
        return _ask_later(evaluation, task, fact.message)
    if fact.refusal == "conflict" and task.status is Status.IN_REVIEW:
        # The forge is stricter than our own merge was: only a new head can get past it.
        task.merge.merging, task.merge.verified = "", None
        evaluation.move(task, Step.RESOLVING, fact.message)
        evaluation.start_new(task, "resolve", head=task.change.head, reason=fact.message)
    elif fact.refusal == "checks" and task.status is Status.IN_REVIEW:
        # As after a red verification, an approval does not make this go away.
        task.merge.merging = ""
        send_back_or_escalate(evaluation, task, task.change.head, fact.message, onto_main=True)
    elif fact.refusal != "refused" and task.merge.stale_merges < _MAX_STALE:
        # Main or the branch moved in between: verify what is there now, and try again.
        _outdate(task)
        if evaluation.sprint.merge_train and _is_member(evaluation, task):
            evaluation.sprint.merge_train = _new_train(evaluation.sprint.merge_train.members)
        task.merge.stale_merges += 1
    else:
        return False
    return True


def _ask_later(evaluation: Evaluation, task: Task, message: str) -> bool:
    """Ask again after a pause, as the forge's CI has not ended; others may go first."""
    if not post_merge_check.wait_for_ci(evaluation, task, task.change.head, message):
        return False
    if _is_member(evaluation, task):
        # Its place in the batch is kept; alone it was not verified on this main.
        _outdate(task)
    task.merge.merging = ""
    return True


def _outdate(task: Task) -> None:
    """Record that the change was green, but not on the main that it would be merged into now."""
    task.merge.merging = ""
    if task.merge.verified:
        task.merge.verified = _replace(task.merge.verified, base="")


# The merge train


def _new_train(members: Iterable[Member]) -> Train | None:
    """Return a train without any result yet; a single change needs none."""
    members = tuple(members)
    return Train(members=members, size=len(members)) if len(members) > 1 else None


def _is_member(evaluation: Evaluation, task: Task) -> bool:
    train = evaluation.sprint.merge_train
    return train is not None and any(m.task == task.id for m in train.members)


def _disband(evaluation: Evaluation) -> None:
    """Drop the train with its results, because main is about to change."""
    if train := evaluation.sprint.merge_train:
        _stop(evaluation, train, "the train was disbanded")
    evaluation.sprint.merge_train = None


def _first(evaluation: Evaluation, train: Train) -> Task:
    return evaluation.state.tasks[train.members[0].task]


def _runs(evaluation: Evaluation, train: Train) -> bool:
    work = _first(evaluation, train).work
    return bool(train.item) and work is not None and work.item == train.item


def _stop(evaluation: Evaluation, train: Train, reason: str) -> None:
    if _runs(evaluation, train):
        evaluation.stop_work(_first(evaluation, train), reason)


def _merges(evaluation: Evaluation, train: Train) -> bool:
    return any(evaluation.state.tasks[member.task].merge.merging for member in train.members)


def _advance_train(evaluation: Evaluation, mergeable: Collection[Member]) -> bool:
    """Take the next step of the train; True if the merge queue belongs to the train."""
    sprint = evaluation.sprint
    _drop_members(evaluation, mergeable)
    train = sprint.merge_train
    if train is None:
        return False
    if _merges(evaluation, train) or _runs(evaluation, train):
        return True
    if (train.chain or train.red) and train.base != evaluation.state.main_commit():
        # Main was moved by others, and the results are about an older main.
        train = sprint.merge_train = _new_train(train.members)
    if train and train.chain:
        return _merge_next(evaluation, train)
    if train and train.red == 1:
        train = _blame_first(evaluation, train, train.red_log, train.red_line)
    if train and not train.red and len(train.members) == 1:
        train = sprint.merge_train = None
    if train is None:
        return False
    _verify_batch(evaluation, train)
    return True


def _drop_members(evaluation: Evaluation, mergeable: Collection[Member]) -> None:
    """Drop members that can no longer be merged.

    If one of them was part of the verified or red prefix, the rest is verified again.
    """
    train = evaluation.sprint.merge_train
    if train is None or _merges(evaluation, train):
        return
    kept = tuple(m for m in train.members if m in mergeable)
    prefix = max(train.size if train.item or train.chain else 0, train.red)
    runs = not train.item or _runs(evaluation, train)
    valid = runs and train.members[:prefix] == kept[:prefix]
    if kept == train.members and valid:
        return
    if valid and kept:
        evaluation.sprint.merge_train = _replace(train, members=kept)
        return
    _stop(evaluation, train, "a member of the train was withdrawn")
    evaluation.sprint.merge_train = _new_train(kept)


def _merge_next(evaluation: Evaluation, train: Train) -> bool:
    task, link = _first(evaluation, train), train.chain[0]
    wait = task.merge.wait_of(link.head)
    if wait and evaluation.now - wait.since > _CI_PATIENCE_S:
        evaluation.sprint.merge_train = _new_train(train.members[1:])
        return _advance_train(evaluation, train.members[1:])
    if wait and wait.until > evaluation.now:
        return False
    assert train.proof is not None
    task.merge.verified = _replace(train.proof, head=link.head, base=train.base, tree=link.tree)
    _merge(evaluation, task)
    return True


def _verify_batch(evaluation: Evaluation, train: Train) -> None:
    size = max(1, train.red // 2) if train.red else len(train.members)
    task = _first(evaluation, train)
    heads = tuple(m.head for m in train.members[:size])
    work = evaluation.new_work(task, "verify", head=task.change.head, heads=heads)
    evaluation.sprint.merge_train = _replace(train, size=size, item=work.item)
    evaluation.start(task, work)


def _blame_first(evaluation: Evaluation, train: Train, log: str, line: str) -> Train | None:
    """Reject the first member, which makes the batch red; the others go on without it."""
    member, *others = train.members
    evaluation.sprint.merge_train = _new_train(others)
    proof = Verified(head=member.head, base=train.base, ok=False, log=log)
    reject_red(evaluation, evaluation.state.tasks[member.task], Outcome(proof=proof, line=line))
    return evaluation.sprint.merge_train


def batch_verified(evaluation: Evaluation, work: Work, fact: WorkEnded, outcome: Outcome) -> None:
    """Record a green batch, or a red one, whose first half is verified next."""
    train = evaluation.sprint.merge_train
    if train is None or train.item != work.item:
        return
    train = _without_conflicts(evaluation, _replace(train, item=""), fact)
    red = train.red if fact.base == train.base else 0
    train = _replace(train, base=fact.base, red=red)
    if outcome.proof.passes:
        train = _replace(train, chain=fact.chain, proof=outcome.proof)
    elif train.size > 1:
        log, line = outcome.proof.log, outcome.line
        train = _replace(train, red=train.size, red_log=log, red_line=line)
    elif train.size == 1:
        _blame_first(evaluation, train, outcome.proof.log, outcome.line)
        return
    evaluation.sprint.merge_train = train if train.members else None


def _without_conflicts(evaluation: Evaluation, train: Train, fact: WorkEnded) -> Train:
    """Drop members that conflict with the ones before them: they are merged alone, later."""
    merged = {link.head for link in fact.chain}
    out = [m for m in train.members[: train.size] if m.head not in merged]
    for member in out:
        evaluation.state.tasks[member.task].merge.batch_conflict = member.head
    if not out:
        return train
    left = tuple(m for m in train.members if m not in out)
    return _replace(train, members=left, size=len(fact.chain), red=0)


def _member_merged(evaluation: Evaluation, task: Task, fact: EffectDone) -> None:
    """Go on with the next member, which is verified if main has the expected tree."""
    train = evaluation.sprint.merge_train
    if train is None or not train.chain or train.members[0].task != task.id:
        return
    members = train.members[1:]
    if fact.tree != train.chain[0].tree or not members:
        evaluation.sprint.merge_train = _new_train(members)
        return
    evaluation.sprint.merge_train = _replace(
        train,
        members=members,
        size=train.size - 1,
        chain=train.chain[1:],
        red=max(0, train.red - 1),
        base=fact.commit,
    )
