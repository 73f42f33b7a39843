"""A merge of ours whose result is not what was verified, because main moved in between.

Main is verified as it is now. If it is red, the change is taken out again by a pull request of its
own, and goes back to its agent. What a person merged is never taken out.
"""

from __future__ import annotations

import msgspec

from caloron.domain.model.effects import ClosePull, MakeRevert, Merge, OpenPull, ReopenIssue
from caloron.domain.model.facts import EffectDone, EffectFailed, WorkEnded
from caloron.domain.model.merge import MergeWait, Revert
from caloron.domain.model.snapshots import PullSnapshot, marker_key
from caloron.domain.model.sprint import State, pull_of, revert_branch
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task
from caloron.domain.reporting import forge_texts
from caloron.domain.rules import merge_train
from caloron.domain.rules.evaluation import Evaluation
from caloron.domain.rules.verification import Outcome, reject
from caloron.durations import Backoff

_MAX_STALE = 5
#: Pauses between two looks at the forge's CI.
_BACKOFF = Backoff(1.0, 15.0)
#: A CI that has not ended by then never will.
_LONGEST_CI_S = 2 * 3600.0

_replace = msgspec.structs.replace


def merge_key(pull: int | None, head: str, base: str) -> str:
    return f"merge/{pull}/{head}/{base}"


def holds_lane(state: State) -> Task | None:
    """The task whose merge has to be settled before anything else is merged."""
    unsettled = (Status.IN_REVIEW, Status.ESCALATED)
    return next(
        (t for t in state.tasks.values() if t.merge.unverified and t.status in unsettled), None
    )


def is_stuck(state: State) -> bool:
    """Whether nothing is merged any more until a person acts."""
    held = holds_lane(state)
    return held is not None and held.status is Status.ESCALATED


def wait_for_ci(evaluation: Evaluation, task: Task, head: str, what: str) -> bool:
    """Ask again after a pause; False: it has been waited for long enough."""
    before = task.merge.waiting if task.merge.waiting and task.merge.waiting.head == head else None
    since, times = (before.since, before.times + 1) if before else (evaluation.now, 1)
    pause = _BACKOFF.pause(times)
    task.merge.waiting = MergeWait(
        head=head, what=what, since=since, until=evaluation.now + pause, times=times
    )
    return evaluation.now - since <= _LONGEST_CI_S


def waits_for_ci(evaluation: Evaluation, task: Task, head: str) -> bool:
    return (
        task.merge.waiting is not None
        and task.merge.waiting.head == head
        and task.merge.waiting.until > evaluation.now
    )


def merge_done(evaluation: Evaluation, task: Task, fact: EffectDone) -> None:
    """Compare what is on main now with what was verified."""
    proof, revert = task.merge.verified, task.merge.revert
    if proof is None or not task.merge.merging:
        return
    as_verified = bool(proof.tree) and fact.tree == proof.tree
    if revert and fact.key == merge_key(revert.pull, task.merge.merging, proof.base):
        task.merge.merging = ""
        _remember_green(evaluation, fact.commit, sound=as_verified and proof.ok)
        _taken_out(evaluation, task, revert, sound=as_verified)
    elif not task.merge.unverified and fact.key == merge_key(
        task.links.pull, task.merge.merging, proof.base
    ):
        task.merge.merging = ""
        _remember_green(evaluation, fact.commit, sound=as_verified and proof.ok)
        merge_train.merged(evaluation, task, fact)
        if fact.by_us and not as_verified:
            task.merge.unverified = fact.commit


def _remember_green(evaluation: Evaluation, commit: str, *, sound: bool) -> None:
    """Main is what was verified: a change that is red on top of it is red by itself."""
    if sound and commit:
        evaluation.sprint.main_health.last_green = commit


def revert_made(evaluation: Evaluation, task: Task, fact: EffectDone) -> None:
    """The branch that takes the change out is on the forge: open its pull request."""
    revert = task.merge.revert
    if revert is None or revert.head or fact.key != _key(evaluation, task, revert):
        return
    task.merge.revert = _replace(revert, head=fact.commit, reapply_commit=fact.reapply_commit)
    evaluation.do(
        OpenPull(
            key=_pull_key(evaluation, task, revert),
            task=task.id,
            title=forge_texts.revert_title(task),
            body=forge_texts.revert_body(evaluation.sprint, task, revert.number, revert.line),
            branch=revert.branch,
        )
    )


def issue_reopened(task: Task) -> None:
    if task.merge.revert:
        task.merge.revert = _replace(task.merge.revert, reopened=True)


def failed(evaluation: Evaluation, task: Task, fact: EffectFailed) -> None:
    """The forge refused a step of taking a change out again."""
    revert, number = task.merge.revert, task.links.pull
    if revert is None:
        return
    if fact.key in (_key(evaluation, task, revert), _pull_key(evaluation, task, revert)):
        _give_up(evaluation, task, f"main is red and #{number} cannot be taken out: {fact.message}")
    elif fact.kind == "reopen_issue":
        # Its issue is not what the change waits for.
        issue_reopened(task)
    elif fact.kind == "merge" and task.merge.merging == revert.head:
        task.merge.merging = ""
        seen = _pull(evaluation, task, revert)
        if seen is not None and seen.state != "open":
            # A person ended it: what follows from that is decided there.
            return
        if fact.refusal == "waiting" and wait_for_ci(evaluation, task, revert.head, fact.message):
            return
        task.merge.verified = None
        task.merge.stale_merges += 1
        if not fact.refusal.startswith("stale") or task.merge.stale_merges > _MAX_STALE:
            _give_up(evaluation, task, f"the forge refused to take #{number} out: {fact.message}")


def advance(evaluation: Evaluation) -> None:
    """Take the next step for what landed on main unverified."""
    task = holds_lane(evaluation.state)
    if task and task.status is Status.IN_REVIEW and not task.work and not task.merge.merging:
        evaluation.apply(task.id, _advance, task)


def _advance(evaluation: Evaluation, task: Task) -> None:
    revert = task.merge.revert
    if revert is None or (revert.merged and not revert.sound):
        evaluation.start(task, evaluation.new_work(task, "verify"), "main is not what was verified")
    elif revert.merged:
        if revert.reopened:
            _back_to_agent(evaluation, task, revert)
    elif revert.head:
        _bring_in(evaluation, task, revert)


def _bring_in(evaluation: Evaluation, task: Task, revert: Revert) -> None:
    pull = _pull(evaluation, task, revert)
    if pull is None:
        return
    revert = task.merge.revert = _replace(revert, pull=pull.number)
    if pull.state == "merged":
        # A person was quicker: what main is now, nobody has verified.
        _taken_out(evaluation, task, revert, sound=False)
        return
    if pull.state == "closed":
        who = pull.ended_by or "a person"
        _give_up(evaluation, task, f"main is red, and {who} closed the revert, #{pull.number}")
        return
    if pull.head != revert.head:
        revert = task.merge.revert = _replace(revert, head=pull.head)
    proof = task.merge.verified
    if waits_for_ci(evaluation, task, revert.head):
        return
    if proof and proof.head == revert.head and proof.base == evaluation.main_commit():
        task.merge.merging = revert.head
        evaluation.do(
            Merge(
                key=merge_key(pull.number, revert.head, proof.base),
                task=task.id,
                pull=pull.number,
                head=revert.head,
                base=proof.base,
                message=forge_texts.merge_message(pull.number, forge_texts.revert_title(task)),
                tree=proof.tree,
            )
        )
    else:
        evaluation.start(task, evaluation.new_work(task, "verify", head=revert.head))


def _pull(evaluation: Evaluation, task: Task, revert: Revert) -> PullSnapshot | None:
    """The pull request of the revert, by its marker."""
    known = evaluation.state.objects.get(f"pull:{revert.pull}")
    if isinstance(known, PullSnapshot):
        return known
    return evaluation.marked(PullSnapshot, _pull_key(evaluation, task, revert))


def _taken_out(evaluation: Evaluation, task: Task, revert: Revert, *, sound: bool) -> None:
    """The change is out of main. Its merge closed the issue: the task is not done after all."""
    task.merge.revert = _replace(
        revert, merged=True, sound=sound, reopened=task.links.issue is None
    )
    if task.links.issue is not None:
        key = f"reopen/{evaluation.sprint.id}/{task.id}/{revert.number}"
        evaluation.do(ReopenIssue(key=key, task=task.id, issue=task.links.issue))


def verified(evaluation: Evaluation, task: Task, fact: WorkEnded, outcome: Outcome) -> None:
    """Main as it is now, or main without the change, was verified."""
    revert, number = task.merge.revert, task.links.pull
    on_main = revert is None or revert.merged
    _remember_green(evaluation, fact.base, sound=on_main and outcome.proof.ok)
    if revert and not revert.merged:
        if fact.conflicts:
            files = ", ".join(fact.conflicts)
            _give_up(evaluation, task, f"main is red and #{number} cannot be taken out: {files}")
        elif outcome.passes:
            task.merge.verified = outcome.proof
        else:
            _give_up(evaluation, task, f"main is red also without #{number}: {outcome.line}")
    elif revert and outcome.passes:
        task.merge.revert = _replace(revert, sound=True)
    elif revert:
        evaluation.escalate(
            task, f"main is red after #{number} was taken out: {outcome.line}", held=None
        )
    elif outcome.passes:
        task.merge.unverified = ""
        task.merge.verified = _replace(outcome.proof, head=task.change.head)
        reason = f"merged as pull request #{number}, main was verified again"
        evaluation.complete(task, reason, f"Completed via PR #{number}")
    elif fact.base == evaluation.main_commit():
        _take_out(evaluation, task, outcome)


def _take_out(evaluation: Evaluation, task: Task, outcome: Outcome) -> None:
    """Our merge turned main red: take it out again, unless the change is a person's own."""
    pull, sprint = pull_of(evaluation.state, task), evaluation.sprint
    ours = pull and marker_key(pull.body) == forge_texts.pull_key(
        sprint.id, task.id, task.links.generation
    )
    if pull is None or not ours:
        line = f"main is red with #{task.links.pull}, which a person wrote: {outcome.line}"
        evaluation.escalate(task, line, held=None)
        return
    task.merge.revert_count += 1
    revert = Revert(
        number=task.merge.revert_count,
        branch=revert_branch(task.id, sprint.id, task.merge.revert_count),
        red=_replace(outcome.proof, head=task.change.head),
        line=outcome.line,
    )
    before = task.merge.verified
    task.merge.revert, task.merge.verified = revert, None
    evaluation.do(
        MakeRevert(
            key=_key(evaluation, task, revert),
            task=task.id,
            branch=revert.branch,
            commit=task.merge.unverified,
            merged_as=forge_texts.merge_message(pull.number, forge_texts.pull_title(task)),
            head=pull.head,
            base=before.base if before else "",
            message=f"{forge_texts.revert_title(task)}\n\nTask: {task.id}\n",
        )
    )


def _back_to_agent(evaluation: Evaluation, task: Task, revert: Revert) -> None:
    """A fix round with the log, which begins with the change brought back on top of main."""
    number, task.links.pull = task.links.pull, None
    task.links.generation += 1
    task.merge.unverified, task.merge.revert, task.merge.verified = "", None, revert.red
    reason = f"main was red with #{number}, which was taken out again: {revert.line}"
    reject(evaluation, task, task.change.head, reason, start=revert.reapply_commit)


def _give_up(evaluation: Evaluation, task: Task, reason: str) -> None:
    """A person has to decide; until then nothing is merged. Then main is looked at again."""
    revert, task.merge.revert = task.merge.revert, None
    if revert and revert.pull is not None:
        key = f"close/{_pull_key(evaluation, task, revert)}"
        evaluation.do(ClosePull(key=key, task=task.id, pull=revert.pull))
    evaluation.escalate(task, reason, held=None)


def _key(evaluation: Evaluation, task: Task, revert: Revert) -> str:
    return forge_texts.revert_key(evaluation.sprint.id, task.id, revert.number)


def _pull_key(evaluation: Evaluation, task: Task, revert: Revert) -> str:
    return forge_texts.revert_pull_key(evaluation.sprint.id, task.id, revert.number)
