"""The merge train: approved changes are verified as one batch on top of main, then merged in order.

A red batch is halved until the change that breaks it is alone. What was verified is a tree: a
member counts as verified on the main that the merges before it made, if that main has exactly the
tree that was expected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from caloron.domain.model.facts import EffectDone, WorkEnded
from caloron.domain.model.merge import LONGEST_TRAIN, Member, Train, Verified
from caloron.domain.model.task import Task, Work
from caloron.domain.rules.evaluation import Evaluation
from caloron.domain.rules.verification import Outcome, reject_red

#: A member that waits longer for the forge's CI is left behind, so that the others go on.
CI_PATIENCE_S = 60.0

_replace = msgspec.structs.replace


def form(evaluation: Evaluation, tasks: Sequence[Task]) -> None:
    """Put changes together, in the order in which they are to be merged."""
    evaluation.sprint.merge_train = _afresh(
        Member(t.id, t.change.head) for t in tasks[:LONGEST_TRAIN]
    )


def _afresh(members: Iterable[Member]) -> Train | None:
    """A train of which nothing is known yet; a single change needs none."""
    found = tuple(members)
    return Train(members=found, size=len(found)) if len(found) > 1 else None


def is_member(evaluation: Evaluation, task: Task) -> bool:
    train = evaluation.sprint.merge_train
    return train is not None and any(m.task == task.id for m in train.members)


def disband(evaluation: Evaluation) -> None:
    """Nothing that is known about it is true any more."""
    train = evaluation.sprint.merge_train
    if train:
        _stop(evaluation, train, "the train was disbanded")
    evaluation.sprint.merge_train = None


def outdate(evaluation: Evaluation, task: Task) -> None:
    """A merge of a member came too late: its chain is not what would be merged now."""
    if evaluation.sprint.merge_train and is_member(evaluation, task):
        evaluation.sprint.merge_train = _afresh(evaluation.sprint.merge_train.members)


def _first(evaluation: Evaluation, train: Train) -> Task:
    return evaluation.state.tasks[train.members[0].task]


def _runs(evaluation: Evaluation, train: Train) -> bool:
    work = _first(evaluation, train).work
    return bool(train.item) and work is not None and work.item == train.item


def _stop(evaluation: Evaluation, train: Train, reason: str) -> None:
    if _runs(evaluation, train):
        evaluation.stop_work(_first(evaluation, train), reason)


def advance(
    evaluation: Evaluation, standing: Collection[Member], merge: Callable[[Task], None]
) -> bool:
    """Take the next step; whether the lane belongs to the train.

    `standing` are the changes that still may be merged: who is not among them has left.
    """
    _leave_behind(evaluation, standing)
    train = evaluation.sprint.merge_train
    if train is None:
        return False
    if any(evaluation.state.tasks[m.task].merge.merging for m in train.members) or _runs(
        evaluation, train
    ):
        return True
    if (train.chain or train.red) and train.base != evaluation.main_commit():
        # Somebody else moved main: what is known was about another one.
        train = evaluation.sprint.merge_train = _afresh(train.members)
    if train and train.chain:
        return _merge_next(evaluation, train, merge)
    if train and train.red == 1:
        train = _blame(evaluation, train, train.red_log, train.red_line)
    if train and not train.red and len(train.members) == 1:
        train = evaluation.sprint.merge_train = None
    if train is None:
        return False
    _verify(evaluation, train)
    return True


def _leave_behind(evaluation: Evaluation, standing: Collection[Member]) -> None:
    """Who was withdrawn leaves; the others are verified again if that changes what they are on."""
    train = evaluation.sprint.merge_train
    if train is None or any(evaluation.state.tasks[m.task].merge.merging for m in train.members):
        return
    kept = tuple(m for m in train.members if m in standing)
    touched = max(train.size if train.item or train.chain else 0, train.red)
    unharmed = train.members[:touched] == kept[:touched] and (
        not train.item or _runs(evaluation, train)
    )
    if kept == train.members and unharmed:
        return
    if unharmed and kept:
        evaluation.sprint.merge_train = _replace(train, members=kept)
        return
    _stop(evaluation, train, "a member of the train was withdrawn")
    evaluation.sprint.merge_train = _afresh(kept)


def _merge_next(evaluation: Evaluation, train: Train, merge: Callable[[Task], None]) -> bool:
    task, link = _first(evaluation, train), train.chain[0]
    waits = (
        task.merge.waiting if task.merge.waiting and task.merge.waiting.head == link.head else None
    )
    if waits and evaluation.now - waits.since > CI_PATIENCE_S:
        evaluation.sprint.merge_train = _afresh(train.members[1:])
        return advance(evaluation, train.members[1:], merge)
    if waits and waits.until > evaluation.now:
        return False
    assert train.proof is not None
    task.merge.verified = _replace(train.proof, head=link.head, base=train.base, tree=link.tree)
    merge(task)
    return True


def _verify(evaluation: Evaluation, train: Train) -> None:
    size = max(1, train.red // 2) if train.red else len(train.members)
    task = _first(evaluation, train)
    heads = tuple(m.head for m in train.members[:size])
    work = evaluation.new_work(task, "verify", head=task.change.head, heads=heads)
    evaluation.sprint.merge_train = _replace(train, size=size, item=work.item)
    evaluation.start(task, work)


def _blame(evaluation: Evaluation, train: Train, log: str, line: str) -> Train | None:
    """The first member is what makes it red: back to its agent; the others go on without it."""
    member, *others = train.members
    evaluation.sprint.merge_train = _afresh(others)
    proof = Verified(head=member.head, base=train.base, ok=False, log=log)
    reject_red(evaluation, evaluation.state.tasks[member.task], Outcome(proof=proof, line=line))
    return evaluation.sprint.merge_train


def verified(evaluation: Evaluation, work: Work, fact: WorkEnded, outcome: Outcome) -> None:
    """The batch is green, or red: then its first half is looked at."""
    train = evaluation.sprint.merge_train
    if train is None or train.item != work.item:
        return
    train = _without_conflicts(evaluation, _replace(train, item=""), fact)
    if fact.base != train.base:
        train = _replace(train, red=0)
    train = _replace(train, base=fact.base)
    if outcome.passes:
        train = _replace(train, chain=fact.chain, proof=outcome.proof)
    elif train.size > 1:
        log, line = outcome.proof.log, outcome.line
        train = _replace(train, red=train.size, red_log=log, red_line=line)
    elif train.size == 1:
        _blame(evaluation, train, outcome.proof.log, outcome.line)
        return
    evaluation.sprint.merge_train = train if train.members else None


def _without_conflicts(evaluation: Evaluation, train: Train, fact: WorkEnded) -> Train:
    """Who cannot be merged after the others goes on alone when they are through."""
    merged = {link.head for link in fact.chain}
    out = [m for m in train.members[: train.size] if m.head not in merged]
    for member in out:
        evaluation.state.tasks[member.task].merge.batch_conflict = member.head
    if not out:
        return train
    left = tuple(m for m in train.members if m not in out)
    return _replace(train, members=left, size=len(fact.chain), red=0)


def merged(evaluation: Evaluation, task: Task, fact: EffectDone) -> None:
    """A member is on main: the next one counts as verified there, if its tree is as expected."""
    train = evaluation.sprint.merge_train
    if train is None or not train.chain or train.members[0].task != task.id:
        return
    members = train.members[1:]
    if fact.tree != train.chain[0].tree or not members:
        evaluation.sprint.merge_train = _afresh(members)
        return
    evaluation.sprint.merge_train = _replace(
        train,
        members=members,
        size=train.size - 1,
        chain=train.chain[1:],
        red=max(0, train.red - 1),
        base=fact.commit,
    )
