"""A merge of ours whose result is not what was verified, because main moved in between.

Main is verified as it is now. If it is red, the change is reverted by a pull request of its own,
and goes back to its agent. The merge of a person is never reverted.
"""

from __future__ import annotations

import msgspec

from caloron.domain.model.effects import ClosePull, MakeRevert, Merge, OpenPull, ReopenIssue
from caloron.domain.model.facts import EffectDone, EffectFailed, RevertRequested, WorkEnded
from caloron.domain.model.merge import LandedMerge, MergeWait, Outcome, Revert, Verified
from caloron.domain.model.snapshots import PullSnapshot, marker_key
from caloron.domain.model.sprint import State, enter, revert_branch
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task
from caloron.domain.reporting import forge_texts
from caloron.domain.rules.evaluation import Evaluation
from caloron.domain.rules.verdicts import send_back_or_escalate
from caloron.durations import Backoff

_MAX_STALE = 5
#: Pauses between two requests to the forge's CI.
_BACKOFF = Backoff(1.0, 15.0)
#: A CI that has not ended by then never will.
_LONGEST_CI_S = 2 * 3600.0

_replace = msgspec.structs.replace


def merge_key(pull: int | None, head: str, base: str) -> str:
    return f"merge/{pull}/{head}/{base}"


def decide_merge(
    evaluation: Evaluation, task: Task, pull: int, verified: Verified, message: str
) -> None:
    """Merge a verified head, of the change or of its revert."""
    head, base = verified.head, verified.base
    task.merge.merging = head
    evaluation.do(
        Merge(
            key=merge_key(pull, head, base),
            task=task.id,
            pull=pull,
            head=head,
            base=base,
            message=message,
            tree=verified.tree,
            style="merge" if task.merge.revert else evaluation.sprint.settings.merge_style,
        )
    )


def landed_merge(state: State, task: Task) -> LandedMerge | None:
    """Return the change of a task on main; None: it has none there."""
    pull, verified = state.pull_of(task), task.merge.verified
    reverted = task.merge.reverted_in is not None
    if task.status is not Status.DONE or reverted or pull is None or not pull.merge_commit:
        return None
    return LandedMerge(
        commit=pull.merge_commit,
        merged_as=forge_texts.merge_message(state.sprint, task, pull.number),
        head=pull.head,
        base=verified.base if verified else "",
    )


def unsettled_merge(state: State) -> Task | None:
    """Return the task whose merge has to be settled before anything else is merged."""
    return next((t for t in state.tasks.values() if _is_unsettled(t)), None)


def _is_unsettled(task: Task) -> bool:
    """True for an unverified merge, also of a task that is done while a person has it reverted."""
    reverting = task.status is Status.DONE and task.merge.revert is not None
    in_review = task.status in (Status.IN_REVIEW, Status.ESCALATED)
    return bool(task.merge.unverified) and (in_review or reverting)


def is_stuck(state: State) -> bool:
    """True if nothing is merged any more until a person acts."""
    task = unsettled_merge(state)
    return task is not None and task.status is Status.ESCALATED


def wait_for_ci(evaluation: Evaluation, task: Task, head: str, what: str) -> bool:
    """Ask again after a pause; False: the head has waited for long enough."""
    before = task.merge.wait_of(head)
    since, times = (before.since, before.times + 1) if before else (evaluation.now, 1)
    until = evaluation.now + _BACKOFF.pause(times)
    task.merge.waiting = MergeWait(head=head, what=what, since=since, until=until, times=times)
    return evaluation.now - since <= _LONGEST_CI_S


def waits_for_ci(evaluation: Evaluation, task: Task, head: str) -> bool:
    wait = task.merge.wait_of(head)
    return wait is not None and wait.until > evaluation.now


def request_revert(evaluation: Evaluation, fact: RevertRequested) -> None:
    """Revert merged tasks as one change; the task that was merged last carries it."""
    state, sprint = evaluation.state, evaluation.sprint
    landed = {t.id: landed_merge(state, t) for t in state.tasks.values()}
    merges = {name: merge for name in fact.tasks if (merge := landed.get(name))}
    if not merges or unsettled_merge(state) or sprint.phase != "ended":
        return
    task, (newest, *older) = state.tasks[next(iter(merges))], merges.values()
    task.merge.revert_count += 1
    revert = Revert(
        number=task.merge.revert_count,
        branch=revert_branch(task.id, sprint.id, task.merge.revert_count),
        by=fact.by,
        tasks=tuple(merges),
    )
    task.merge.unverified, task.merge.revert, task.merge.stale_merges = newest.commit, revert, 0
    enter(sprint, "running")
    for name in merges:
        evaluation.note(state.tasks[name], f"{fact.by} reverts it")
    evaluation.do(
        MakeRevert(
            key=_key(evaluation, task, revert),
            task=task.id,
            branch=revert.branch,
            commit=newest.commit,
            merged_as=newest.merged_as,
            head=newest.head,
            base=newest.base,
            message=f"Revert {forge_texts.pull_title(task)}\n\nTask: {task.id}\n",
            older=tuple(older),
        )
    )


def revert_made(evaluation: Evaluation, task: Task, fact: EffectDone) -> None:
    """Open the pull request of the revert, whose branch is on the forge now."""
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
    """Handle a step of the revert that the forge refused."""
    revert, number = task.merge.revert, task.links.pull
    if revert is None:
        return
    if fact.key in (_key(evaluation, task, revert), _pull_key(evaluation, task, revert)):
        reason = f"main is red and #{number} cannot be taken out: {fact.message}"
        give_up(evaluation, task, fact.message if revert.by else reason)
    elif fact.kind == "reopen_issue":
        # The revert does not need the issue.
        issue_reopened(task)
    elif fact.kind == "merge" and task.merge.merging == revert.head:
        task.merge.merging = ""
        pull = _pull(evaluation, task, revert)
        if pull is not None and pull.state != "open":
            # A person closed or merged it: the next tick follows from that.
            return
        if fact.refusal == "waiting" and wait_for_ci(evaluation, task, revert.head, fact.message):
            return
        task.merge.verified = None
        task.merge.stale_merges += 1
        if not fact.refusal.startswith("stale") or task.merge.stale_merges > _MAX_STALE:
            give_up(evaluation, task, f"the forge refused the revert: {fact.message}")


def advance(evaluation: Evaluation) -> None:
    """Take the next step for what landed on main unverified."""
    task = unsettled_merge(evaluation.state)
    stuck = task is not None and task.status is Status.ESCALATED
    if task and not stuck and not task.work and not task.merge.merging:
        evaluation.apply(task.id, _advance, task)


def _advance(evaluation: Evaluation, task: Task) -> None:
    revert = task.merge.revert
    if revert is None or (revert.merged and not revert.sound):
        evaluation.start_new(task, "verify", why="main is not what was verified")
    elif revert.merged and revert.by:
        _end_requested(evaluation, task, revert)
    elif revert.merged:
        if revert.reopened:
            _back_to_agent(evaluation, task, revert)
    elif revert.head:
        _merge_revert(evaluation, task, revert)


def _merge_revert(evaluation: Evaluation, task: Task, revert: Revert) -> None:
    """Verify main without the change, then merge the revert."""
    pull = _pull(evaluation, task, revert)
    if pull is None:
        return
    revert = task.merge.revert = _replace(revert, pull=pull.number)
    if pull.state == "merged":
        # A person merged it: main is not verified.
        revert_merged(evaluation, task, revert, sound=False)
        return
    if pull.state == "closed":
        who = pull.ended_by or "a person"
        why = "" if revert.by else "main is red, and "
        give_up(evaluation, task, f"{why}{who} closed the revert, #{pull.number}")
        return
    revert = task.merge.revert = _replace(revert, head=pull.head)
    if waits_for_ci(evaluation, task, revert.head):
        return
    proof = task.merge.verified_head(revert.head)
    if proof is None or proof.base != evaluation.state.main_commit():
        evaluation.start_new(task, "verify", head=revert.head)
        return
    message = forge_texts.revert_merge_message(evaluation.sprint, task, pull.number)
    decide_merge(evaluation, task, pull.number, proof, message)


def _pull(evaluation: Evaluation, task: Task, revert: Revert) -> PullSnapshot | None:
    """Find the pull request of the revert, by its marker the first time."""
    known = evaluation.state.pull(revert.pull)
    return known or evaluation.marked(PullSnapshot, _pull_key(evaluation, task, revert))


def revert_merged(evaluation: Evaluation, task: Task, revert: Revert, *, sound: bool) -> None:
    """Open the issue again, which the merge of the change had closed.

    `sound`: main without the change is known to be green.
    """
    issue = None if revert.by else task.links.issue
    task.merge.revert = _replace(revert, merged=True, sound=sound, reopened=issue is None)
    if issue is not None:
        key = f"reopen/{evaluation.sprint.id}/{task.id}/{revert.number}"
        evaluation.do(ReopenIssue(key=key, task=task.id, issue=issue))


def verification_ended(
    evaluation: Evaluation, task: Task, fact: WorkEnded, outcome: Outcome
) -> None:
    """Take in the verification of main as it is now, or of main without the change."""
    revert, number = task.merge.revert, task.links.pull
    if (revert is None or revert.merged) and outcome.proof.ok and fact.base:
        evaluation.sprint.main_health.last_green = fact.base
    if revert and not revert.merged:
        if fact.conflicts:
            files = ", ".join(fact.conflicts)
            reason = f"main is red and #{number} cannot be taken out: {files}"
            by_hand = f"what came after it changed the same lines of {files}"
            give_up(evaluation, task, by_hand if revert.by else reason)
        elif outcome.proof.passes:
            task.merge.verified = outcome.proof
        else:
            reason = f"main is red also without #{number}: {outcome.line}"
            by_hand = f"main would be red without it: {outcome.line}"
            give_up(evaluation, task, by_hand if revert.by else reason)
    elif revert and outcome.proof.passes:
        task.merge.revert = _replace(revert, sound=True)
    elif revert and revert.by:
        _end_requested(evaluation, task, revert, f"main is red after the revert: {outcome.line}")
    elif revert:
        reason = f"main is red after #{number} was taken out: {outcome.line}"
        evaluation.escalate(task, reason)
    elif outcome.proof.passes:
        task.merge.unverified = ""
        task.merge.verified = _replace(outcome.proof, head=task.change.head)
        reason = f"merged as pull request #{number}, main was verified again"
        evaluation.complete(task, reason, f"Completed via PR #{number}")
    elif fact.base == evaluation.state.main_commit():
        _revert(evaluation, task, outcome)


def _revert(evaluation: Evaluation, task: Task, outcome: Outcome) -> None:
    """Revert our merge, which turned main red, unless a person wrote the change."""
    pull, sprint = evaluation.state.pull_of(task), evaluation.sprint
    ours = forge_texts.pull_key(sprint.id, task.id, task.links.generation)
    if pull is None or marker_key(pull.body) != ours:
        line = f"main is red with #{task.links.pull}, which a person wrote: {outcome.line}"
        evaluation.escalate(task, line)
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
            merged_as=forge_texts.merge_message(sprint, task, pull.number),
            head=pull.head,
            base=before.base if before else "",
            message=f"{forge_texts.revert_subject(sprint, task)}\n\nTask: {task.id}\n",
        )
    )


def _back_to_agent(evaluation: Evaluation, task: Task, revert: Revert) -> None:
    """Start a fix round with the log, from the change reapplied on top of main."""
    number, task.links.pull = task.links.pull, None
    task.links.generation += 1
    task.merge.unverified, task.merge.revert, task.merge.verified = "", None, revert.red
    reason = f"main was red with #{number}, which was taken out again: {revert.line}"
    send_back_or_escalate(evaluation, task, task.change.head, reason, start=revert.reapply_commit)


def give_up(evaluation: Evaluation, task: Task, reason: str) -> None:
    """Escalate. Nothing is merged until a person releases the task; then main is verified again.

    Where a person asked for the revert, main stays as it is, and the command reports the reason.
    """
    revert, task.merge.revert = task.merge.revert, None
    if revert and revert.pull is not None:
        key = f"close/{_pull_key(evaluation, task, revert)}"
        evaluation.do(ClosePull(key=key, task=task.id, pull=revert.pull))
    if revert and revert.by:
        task.merge.unverified, task.merge.revert = "", _replace(revert, failure=reason)
        for name in revert.tasks:
            evaluation.note(evaluation.state.tasks[name], f"not reverted: {reason}")
    else:
        evaluation.escalate(task, reason)


def _end_requested(evaluation: Evaluation, task: Task, revert: Revert, failure: str = "") -> None:
    """Record on each task that main is without its change, as a person asked."""
    task.merge.unverified, task.merge.revert = "", _replace(revert, failure=failure)
    line = f"reverted by {revert.by} in pull request #{revert.pull}"
    for name in revert.tasks:
        reverted = evaluation.state.tasks[name]
        reverted.merge.reverted_in = revert.pull
        evaluation.note(reverted, line)
        evaluation.comment(reverted, "reverted", str(revert.pull), f"{line[0].upper()}{line[1:]}.")


def _key(evaluation: Evaluation, task: Task, revert: Revert) -> str:
    return f"revert/{evaluation.sprint.id}/{task.id}/{revert.number}"


def _pull_key(evaluation: Evaluation, task: Task, revert: Revert) -> str:
    return forge_texts.revert_pull_key(evaluation.sprint.id, task.id, revert.number)
