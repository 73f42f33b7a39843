"""Verifications: of main before money is spent, and of each change merged with main.

`reject` sends a change back to its agent, or to a person after the last fix round.
"""

from __future__ import annotations

import msgspec

from caloron.domain.model.effects import StartWork
from caloron.domain.model.facts import WorkEnded, classify, is_red, red_line
from caloron.domain.model.merge import MergeWait, SuspectFailure, Verified
from caloron.domain.model.roles import BASELINE, WorkId
from caloron.domain.model.sprint import Sprint, enter
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task, Work
from caloron.domain.rules.evaluation import Evaluation

_MAX_BASELINE_RUNS = 2


def verify_baseline(evaluation: Evaluation) -> bool:
    """Have main verified once; True while that is not decided."""
    sprint = evaluation.sprint
    if sprint.main_health.baseline:
        return False
    if sprint.main_health.work is None and not sprint.planning.failure:
        _verify_main(evaluation)
    return True


def look_again(evaluation: Evaluation) -> None:
    """Have main verified by itself, as it is now: a result on top of it is red."""
    if evaluation.sprint.main_health.work is None:
        _verify_main(evaluation, "is main itself red?")


def _looked(evaluation: Evaluation, fact: WorkEnded, *, red: bool) -> None:
    sprint = evaluation.sprint
    if not red or fact.internal_error:
        # Where main cannot be looked at, a change is judged by its own result.
        sprint.main_health.last_green = fact.base or evaluation.main_commit()
        return
    by = f" by {fact.main_author}" if fact.main_author else ""
    sprint.main_health.red_commit = fact.base
    sprint.main_health.red_summary = (
        f"{sprint.settings.main_branch} itself is red since {fact.base[:12]}{by}: {red_line(fact)}"
    )


def _verify_main(evaluation: Evaluation, reason: str = "") -> None:
    evaluation.sprint.main_health.runs += 1
    item = str(WorkId(evaluation.sprint.id, BASELINE, evaluation.sprint.main_health.runs, "verify"))
    _start(evaluation, Work(item=item, role="verify", queued_at=evaluation.now), reason)


def _start(evaluation: Evaluation, work: Work, reason: str = "") -> None:
    evaluation.sprint.main_health.work = work
    evaluation.do(StartWork(task="", work=work, priority=4000, reason=reason))


def baseline_ended(evaluation: Evaluation, fact: WorkEnded) -> None:
    """Green, red, or nothing to verify; a red one is looked at once more."""
    sprint, work = evaluation.sprint, evaluation.sprint.main_health.work
    if work is None or work.item != fact.item or fact.token <= work.last_token:
        return
    work = msgspec.structs.replace(work, last_token=fact.token)
    red = classify(fact).kind in ("red", "failed")
    if red and work.tries < _MAX_BASELINE_RUNS:
        again = msgspec.structs.replace(work, tries=work.tries + 1)
        _start(evaluation, again, "main is red: run again")
        return
    sprint.main_health.work = None
    if sprint.main_health.baseline:
        _looked(evaluation, fact, red=red)
        return
    sprint.main_health.verify_line = fact.verify_command
    if not red:
        sprint.main_health.last_green = fact.base
        sprint.main_health.baseline = fact.skipped or "green"
    elif sprint.settings.allow_red and not fact.internal_error:
        sprint.main_health.baseline = "red"
    else:
        last = fact.internal_error or red_line(fact)
        what = (
            "main could not be verified" if fact.internal_error else "main is red before the sprint"
        )
        sprint.planning.failure, sprint.planning.failure_log = f"{what}: {last}", fact.log
        sprint.planning.failure_kind = "" if fact.internal_error else "red_main"
        enter(sprint, "ended")
        sprint.ended_at = evaluation.now


def tolerates(evaluation: Evaluation, ok: bool) -> bool:
    """Whether a red result may pass: only while main is red itself, as the user allowed."""
    return not ok and evaluation.sprint.main_health.baseline == "red"


_MAX_RUNS = 2


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Green, red, or red and allowed; and the line that says why."""

    proof: Verified
    line: str = ""

    @property
    def passes(self) -> bool:
        return self.proof.passes


def judged(evaluation: Evaluation, task: Task, work: Work, fact: WorkEnded) -> Outcome | None:
    """What was found out; None: it was red for the first time and is run again."""
    gone = fact.skipped == "unverified" and bool(evaluation.sprint.main_health.verify_line)
    ok = not is_red(fact) and not gone
    if not ok and work.tries < _MAX_RUNS:
        again = msgspec.structs.replace(work, tries=work.tries + 1)
        evaluation.start(task, again, "verification failed: run again")
        return None
    task.attempts.reset()
    missing = f"nothing is left of what verified main ({evaluation.sprint.main_health.verify_line})"
    _remember_how(evaluation, fact)
    proof = Verified(
        head=work.head,
        base=fact.base,
        ok=ok,
        log=fact.log,
        tolerated=tolerates(evaluation, ok),
        tree=fact.tree,
    )
    return Outcome(proof=proof, line="" if ok else missing if gone else red_line(fact))


def _remember_how(evaluation: Evaluation, fact: WorkEnded) -> None:
    """A main that was empty tells only now whether there are tests."""
    sprint = evaluation.sprint
    if sprint.main_health.baseline == "none" and fact.skipped == "unverified":
        sprint.main_health.baseline = "unverified"
    sprint.main_health.verify_line = sprint.main_health.verify_line or fact.verify_command


def reject(
    evaluation: Evaluation,
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
    if head not in task.review.rejected:
        task.review.rejected = (*task.review.rejected, head)
    verified = (
        task.merge.verified if task.merge.verified and task.merge.verified.head == head else None
    )
    log = verified.log if verified else ""
    fix = evaluation.new_work(task, "fix", head=start or head, reason=details or reason, log=log)
    red = verified is not None and not verified.passes
    fix = msgspec.structs.replace(fix, onto_main=red or onto_main)
    if len(task.review.rejected) > evaluation.sprint.settings.max_fix_rounds:
        rounds = evaluation.sprint.settings.max_fix_rounds
        evaluation.escalate(task, f"not approved after {rounds} fix rounds: {reason}", held=fix)
        task.escalation.resume_as = Status.IN_PROGRESS
        return
    evaluation.move(task, Status.IN_PROGRESS, reason)
    evaluation.start(task, fix)


def reject_red(evaluation: Evaluation, task: Task, outcome: Outcome) -> None:
    """The merged result is red: the change goes back with the log, unless main may be to blame."""
    if main_is_not_suspect(evaluation.sprint, outcome.proof.base):
        _blame(evaluation, task, SuspectFailure(proof=outcome.proof, line=outcome.line))
        return
    task.merge.verified = None
    task.merge.suspect = SuspectFailure(proof=outcome.proof, line=outcome.line)
    _wait(evaluation, task, "its result is red: main is being verified by itself")


def main_is_not_suspect(sprint: Sprint, base: str) -> bool:
    """True if `base` is known to be green, or if no green main was ever recorded.

    Without a green main nothing shows whose failure it is, so the change is sent back.
    """
    known = sprint.main_health.baseline == "green" and bool(sprint.main_health.last_green)
    return not known or base in ("", sprint.main_health.last_green)


def red_reason(line: str) -> str:
    return f"verification of the merged result failed: {line}"


def _blame(evaluation: Evaluation, task: Task, doubt: SuspectFailure) -> None:
    task.merge.verified = doubt.proof
    reject(evaluation, task, doubt.proof.head, red_reason(doubt.line))


def red_result(_evaluation: Evaluation, task: Task) -> bool:
    """The merged result is red, and main itself may be red."""
    return task.merge.suspect is not None


def settle_suspect(evaluation: Evaluation, task: Task) -> None:
    """Verify main alone: red, escalate; green, start a fix round."""
    if task.merge.suspect:
        _settle(evaluation, task, task.merge.suspect)


def waits_for_main(sprint: Sprint, task: Task) -> bool:
    """Whether only a person can help, by putting main right."""
    return (
        task.merge.suspect is not None
        and task.merge.suspect.proof.base == sprint.main_health.red_commit
    )


def _settle(evaluation: Evaluation, task: Task, doubt: SuspectFailure) -> None:
    sprint, base = evaluation.sprint, doubt.proof.base
    outdated = task.change.head != doubt.proof.head or base != evaluation.main_commit()
    if task.status is not Status.IN_REVIEW or task.merge.unverified or task.work or outdated:
        # It is not what would be merged now: what is there is verified anew.
        task.merge.suspect = task.merge.waiting = None
    elif main_is_not_suspect(sprint, base):
        task.merge.suspect = task.merge.waiting = None
        _blame(evaluation, task, doubt)
    elif base != sprint.main_health.red_commit:
        look_again(evaluation)
    elif _somebody_is_told(evaluation):
        _wait(evaluation, task, sprint.main_health.red_summary)
    else:
        task.merge.suspect = task.merge.waiting = None
        sprint.main_health.escalated_with = task.id
        again = evaluation.new_work(task, "verify", head=task.change.head)
        evaluation.escalate(task, sprint.main_health.red_summary, held=again)


def _somebody_is_told(evaluation: Evaluation) -> bool:
    """One issue is enough for a main that is red."""
    told = evaluation.state.tasks.get(evaluation.sprint.main_health.escalated_with)
    reason = evaluation.sprint.main_health.red_summary
    return told is not None and told.status is Status.ESCALATED and told.reason == reason


def _wait(evaluation: Evaluation, task: Task, what: str) -> None:
    if task.merge.waiting is None or task.merge.waiting.what != what:
        task.merge.waiting = MergeWait(
            head=task.change.head, what=what, since=evaluation.now, until=evaluation.now
        )
