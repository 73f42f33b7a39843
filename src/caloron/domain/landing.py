"""A merge of ours whose result is not what was verified, because main moved in between.

Main is verified as it is now. If it is red, the change is taken out again by a pull request of its
own, and goes back to its agent. What a person merged is never taken out.
"""

from __future__ import annotations

import msgspec

from caloron.domain import texts, train
from caloron.domain.actions import ClosePull, MakeRevert, Merge, OpenPull, ReopenIssue
from caloron.domain.facts import EffectDone, EffectFailed, WorkEnded
from caloron.domain.merging import Revert, Waits
from caloron.domain.observations import PullSeen, marker_key
from caloron.domain.sprint import State, Task, pull_of, revert_branch
from caloron.domain.status import Status
from caloron.domain.turn import Turn
from caloron.domain.verifying import Outcome, reject

_MAX_STALE = 5
#: Pauses between two looks at the forge's CI.
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 15.0
#: A CI that has not ended by then never will.
_LONGEST_CI_S = 2 * 3600.0

_replace = msgspec.structs.replace


def merge_key(pull: int | None, head: str, base: str) -> str:
    return f"merge/{pull}/{head}/{base}"


def holds_lane(state: State) -> Task | None:
    """The task whose merge has to be settled before anything else is merged."""
    unsettled = (Status.IN_REVIEW, Status.ESCALATED)
    return next((t for t in state.tasks.values() if t.landed and t.status in unsettled), None)


def is_stuck(state: State) -> bool:
    """Whether nothing is merged any more until a person acts."""
    held = holds_lane(state)
    return held is not None and held.status is Status.ESCALATED


def wait_for_ci(turn: Turn, task: Task, head: str, what: str) -> bool:
    """Ask again after a pause; False: it has been waited for long enough."""
    before = task.waits if task.waits and task.waits.head == head else None
    since, times = (before.since, before.times + 1) if before else (turn.now, 1)
    pause = min(_FIRST_PAUSE_S * 2 ** min(times - 1, 10), _LONGEST_PAUSE_S)
    task.waits = Waits(head=head, what=what, since=since, until=turn.now + pause, times=times)
    return turn.now - since <= _LONGEST_CI_S


def waits_for_ci(turn: Turn, task: Task, head: str) -> bool:
    return task.waits is not None and task.waits.head == head and task.waits.until > turn.now


def merge_done(turn: Turn, task: Task, fact: EffectDone) -> None:
    """Compare what is on main now with what was verified."""
    proof, revert = task.verified, task.revert
    if proof is None or not task.merging:
        return
    as_verified = bool(proof.tree) and fact.tree == proof.tree
    if revert and fact.key == merge_key(revert.pull, task.merging, proof.base):
        task.merging = ""
        _remember_green(turn, fact.commit, sound=as_verified and proof.ok)
        _taken_out(turn, task, revert, sound=as_verified)
    elif not task.landed and fact.key == merge_key(task.pull, task.merging, proof.base):
        task.merging = ""
        _remember_green(turn, fact.commit, sound=as_verified and proof.ok)
        train.merged(turn, task, fact)
        if fact.by_us and not as_verified:
            task.landed = fact.commit


def _remember_green(turn: Turn, commit: str, *, sound: bool) -> None:
    """Main is what was verified: a change that is red on top of it is red by itself."""
    if sound and commit:
        turn.sprint.green_main = commit


def revert_made(turn: Turn, task: Task, fact: EffectDone) -> None:
    """The branch that takes the change out is on the forge: open its pull request."""
    revert = task.revert
    if revert is None or revert.head or fact.key != _key(turn, task, revert):
        return
    task.revert = _replace(revert, head=fact.commit, again=fact.again)
    turn.do(
        OpenPull(
            key=_pull_key(turn, task, revert),
            task=task.id,
            title=texts.revert_title(task),
            body=texts.revert_body(turn.sprint, task, revert.number, revert.line),
            branch=revert.branch,
        )
    )


def issue_reopened(task: Task) -> None:
    if task.revert:
        task.revert = _replace(task.revert, reopened=True)


def failed(turn: Turn, task: Task, fact: EffectFailed) -> None:
    """The forge refused a step of taking a change out again."""
    revert, number = task.revert, task.pull
    if revert is None:
        return
    if fact.key in (_key(turn, task, revert), _pull_key(turn, task, revert)):
        _give_up(turn, task, f"main is red and #{number} cannot be taken out: {fact.message}")
    elif fact.kind == "reopen_issue":
        # Its issue is not what the change waits for.
        issue_reopened(task)
    elif fact.kind == "merge" and task.merging == revert.head:
        task.merging = ""
        seen = _pull(turn, task, revert)
        if seen is not None and seen.state != "open":
            # A person ended it: what follows from that is decided there.
            return
        if fact.refusal == "waiting" and wait_for_ci(turn, task, revert.head, fact.message):
            return
        task.verified = None
        task.stale_merges += 1
        if not fact.refusal.startswith("stale") or task.stale_merges > _MAX_STALE:
            _give_up(turn, task, f"the forge refused to take #{number} out: {fact.message}")


def advance(turn: Turn) -> None:
    """Take the next step for what landed on main unverified."""
    task = holds_lane(turn.state)
    if task and task.status is Status.IN_REVIEW and not task.work and not task.merging:
        turn.apply(task.id, _advance, task)


def _advance(turn: Turn, task: Task) -> None:
    revert = task.revert
    if revert is None or (revert.merged and not revert.sound):
        turn.start(task, turn.new_work(task, "verify"), "main is not what was verified")
    elif revert.merged:
        if revert.reopened:
            _back_to_agent(turn, task, revert)
    elif revert.head:
        _bring_in(turn, task, revert)


def _bring_in(turn: Turn, task: Task, revert: Revert) -> None:
    pull = _pull(turn, task, revert)
    if pull is None:
        return
    revert = task.revert = _replace(revert, pull=pull.number)
    if pull.state == "merged":
        # A person was quicker: what main is now, nobody has verified.
        _taken_out(turn, task, revert, sound=False)
        return
    if pull.state == "closed":
        who = pull.ended_by or "a person"
        _give_up(turn, task, f"main is red, and {who} closed the revert, #{pull.number}")
        return
    if pull.head != revert.head:
        revert = task.revert = _replace(revert, head=pull.head)
    proof = task.verified
    if waits_for_ci(turn, task, revert.head):
        return
    if proof and proof.head == revert.head and proof.base == turn.main_commit():
        task.merging = revert.head
        turn.do(
            Merge(
                key=merge_key(pull.number, revert.head, proof.base),
                task=task.id,
                pull=pull.number,
                head=revert.head,
                base=proof.base,
                message=texts.merge_message(pull.number, texts.revert_title(task)),
            )
        )
    else:
        turn.start(task, turn.new_work(task, "verify", head=revert.head))


def _pull(turn: Turn, task: Task, revert: Revert) -> PullSeen | None:
    """The pull request of the revert, by its marker."""
    known = turn.state.objects.get(f"pull:{revert.pull}")
    if isinstance(known, PullSeen):
        return known
    key = _pull_key(turn, task, revert)
    found = [
        seen
        for seen in turn.state.objects.values()
        if isinstance(seen, PullSeen)
        and seen.author == turn.sprint.author
        and marker_key(seen.body) == key
    ]
    return min(found, key=lambda p: p.number, default=None)


def _taken_out(turn: Turn, task: Task, revert: Revert, *, sound: bool) -> None:
    """The change is out of main. Its merge closed the issue: the task is not done after all."""
    task.revert = _replace(revert, merged=True, sound=sound, reopened=task.issue is None)
    if task.issue is not None:
        key = f"reopen/{turn.sprint.id}/{task.id}/{revert.number}"
        turn.do(ReopenIssue(key=key, task=task.id, issue=task.issue))


def verified(turn: Turn, task: Task, fact: WorkEnded, outcome: Outcome) -> None:
    """Main as it is now, or main without the change, was verified."""
    revert, number = task.revert, task.pull
    on_main = revert is None or revert.merged
    _remember_green(turn, fact.base, sound=on_main and outcome.proof.ok)
    if revert and not revert.merged:
        if fact.conflicts:
            files = ", ".join(fact.conflicts)
            _give_up(turn, task, f"main is red and #{number} cannot be taken out: {files}")
        elif outcome.passes:
            task.verified = outcome.proof
        else:
            _give_up(turn, task, f"main is red also without #{number}: {outcome.line}")
    elif revert and outcome.passes:
        task.revert = _replace(revert, sound=True)
    elif revert:
        turn.escalate(task, f"main is red after #{number} was taken out: {outcome.line}", held=None)
    elif outcome.passes:
        task.landed = ""
        task.verified = _replace(outcome.proof, head=task.head)
        reason = f"merged as pull request #{number}, main was verified again"
        turn.complete(task, reason, f"Completed via PR #{number}")
    elif fact.base == turn.main_commit():
        _take_out(turn, task, outcome)


def _take_out(turn: Turn, task: Task, outcome: Outcome) -> None:
    """Our merge turned main red: take it out again, unless the change is a person's own."""
    pull, sprint = pull_of(turn.state, task), turn.sprint
    ours = pull and marker_key(pull.body) == texts.pull_key(sprint.id, task.id, task.generation)
    if pull is None or not ours:
        line = f"main is red with #{task.pull}, which a person wrote: {outcome.line}"
        turn.escalate(task, line, held=None)
        return
    task.reverts += 1
    revert = Revert(
        number=task.reverts,
        branch=revert_branch(task.id, sprint.id, task.reverts),
        red=_replace(outcome.proof, head=task.head),
        line=outcome.line,
    )
    before = task.verified
    task.revert, task.verified = revert, None
    turn.do(
        MakeRevert(
            key=_key(turn, task, revert),
            task=task.id,
            branch=revert.branch,
            commit=task.landed,
            merged_as=texts.merge_message(pull.number, texts.pull_title(task)),
            head=pull.head,
            base=before.base if before else "",
            message=f"{texts.revert_title(task)}\n\nTask: {task.id}\n",
        )
    )


def _back_to_agent(turn: Turn, task: Task, revert: Revert) -> None:
    """A fix round with the log, which begins with the change brought back on top of main."""
    number, task.pull = task.pull, None
    task.generation += 1
    task.landed, task.revert, task.verified = "", None, revert.red
    reason = f"main was red with #{number}, which was taken out again: {revert.line}"
    reject(turn, task, task.head, reason, start=revert.again)


def _give_up(turn: Turn, task: Task, reason: str) -> None:
    """A person has to decide; until then nothing is merged. Then main is looked at again."""
    revert, task.revert = task.revert, None
    if revert and revert.pull is not None:
        key = f"close/{_pull_key(turn, task, revert)}"
        turn.do(ClosePull(key=key, task=task.id, pull=revert.pull))
    turn.escalate(task, reason, held=None)


def _key(turn: Turn, task: Task, revert: Revert) -> str:
    return texts.revert_key(turn.sprint.id, task.id, revert.number)


def _pull_key(turn: Turn, task: Task, revert: Revert) -> str:
    return texts.revert_pull_key(turn.sprint.id, task.id, revert.number)
