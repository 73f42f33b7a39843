"""What a verification came to, and what becomes of a change that cannot be merged."""

from __future__ import annotations

import msgspec

from caloron.domain.baseline import tolerates
from caloron.domain.facts import WorkEnded
from caloron.domain.merging import Verified
from caloron.domain.sprint import Task, Work
from caloron.domain.status import Status
from caloron.domain.turn import Turn

_MAX_RUNS = 2


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Green, red, or red and allowed; and the line that says why."""

    proof: Verified
    line: str = ""

    @property
    def passes(self) -> bool:
        return self.proof.passes


def judged(turn: Turn, task: Task, work: Work, fact: WorkEnded) -> Outcome | None:
    """What was found out; None: it was red for the first time and is run again."""
    gone = fact.skipped == "unverified" and bool(turn.sprint.verify_line)
    ok = fact.exit_code == 0 and not (fact.timed_out or fact.over or gone)
    if not ok and work.asks < _MAX_RUNS:
        again = msgspec.structs.replace(work, asks=work.asks + 1)
        turn.start(task, again, "verification failed: run again")
        return None
    task.failures = 0
    _remember_how(turn, fact)
    proof = Verified(
        head=work.head,
        base=fact.base,
        ok=ok,
        log=fact.log,
        tolerated=tolerates(turn, ok),
        tree=fact.tree,
    )
    return Outcome(proof=proof, line="" if ok else _last_line(turn, fact, gone=gone))


def _last_line(turn: Turn, fact: WorkEnded, *, gone: bool) -> str:
    if gone:
        return f"nothing is left of what verified main ({turn.sprint.verify_line})"
    if fact.timed_out:
        return "it ran out of time"
    return fact.over or fact.last_line or f"exit code {fact.exit_code}"


def _remember_how(turn: Turn, fact: WorkEnded) -> None:
    """A main that was empty tells only now whether there are tests."""
    sprint = turn.sprint
    if sprint.baseline == "none" and fact.skipped == "unverified":
        sprint.baseline = "unverified"
    sprint.verify_line = sprint.verify_line or fact.how


def reject(
    turn: Turn,
    task: Task,
    head: str,
    reason: str,
    details: str = "",
    *,
    start: str = "",
    onto_main: bool = False,
) -> None:
    """A head that cannot be merged goes back to its agent, up to the cap.

    `reason` is the line that people read; the agent gets the details. It goes on from that head,
    or from `start`.
    """
    if head not in task.rejected:
        task.rejected = (*task.rejected, head)
    verified = task.verified if task.verified and task.verified.head == head else None
    log = verified.log if verified else ""
    fix = turn.new_work(task, "fix", head=start or head, reason=details or reason, log=log)
    red = verified is not None and not verified.passes
    fix = msgspec.structs.replace(fix, onto_main=red or onto_main)
    if len(task.rejected) > turn.sprint.max_fix_rounds:
        rounds = turn.sprint.max_fix_rounds
        turn.escalate(task, f"not approved after {rounds} fix rounds: {reason}", held=fix)
        task.held_from = Status.IN_PROGRESS
        return
    turn.move(task, Status.IN_PROGRESS, reason)
    turn.start(task, fix)
