"""Verifications: of main before money is spent, and of each change merged with main."""

from __future__ import annotations

import msgspec

from caloron.domain.model.facts import WorkEnded, classify, is_red, red_line
from caloron.domain.model.merge import MergeWait, Outcome, Verified
from caloron.domain.model.roles import BASELINE, WorkId
from caloron.domain.model.sprint import Sprint, enter
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task, Work
from caloron.domain.rules.evaluation import Evaluation
from caloron.domain.rules.verdicts import send_back_or_escalate

#: A red verification is run once more, because a flaky test may have failed.
_MAX_RUNS = 2
_replace = msgspec.structs.replace


def verify_baseline(evaluation: Evaluation) -> bool:
    """Have main verified once; True while the result is not known."""
    sprint = evaluation.sprint
    if sprint.main_health.baseline:
        return False
    if not sprint.planning.failure:
        _verify_main(evaluation)
    return True


def _verify_main(evaluation: Evaluation, reason: str = "") -> None:
    health = evaluation.sprint.main_health
    if health.work is None:
        health.runs += 1
        item = str(WorkId(evaluation.sprint.id, BASELINE, health.runs, "verify"))
        health.work = evaluation.queue(Work(item=item, role="verify"), reason)


def baseline_ended(evaluation: Evaluation, fact: WorkEnded) -> None:
    """Record whether main is green, red, or has nothing to verify; run a red one again."""
    sprint, health = evaluation.sprint, evaluation.sprint.main_health
    work = health.work.ended_by(fact.item, fact.token) if health.work else None
    if work is None:
        return
    red = classify(fact).kind in ("red", "failed")
    if red and work.tries < _MAX_RUNS:
        again = _replace(work, tries=work.tries + 1)
        health.work = evaluation.queue(again, "main is red: run again")
        return
    health.work = None
    if health.baseline:
        _main_verified_again(evaluation, fact, red=red)
        return
    health.verify_line = fact.verify_command
    if not red:
        health.last_green, health.baseline = fact.base, fact.skipped or "green"
    elif sprint.settings.allow_red and not fact.internal_error:
        health.baseline = "red"
    else:
        broken = bool(fact.internal_error)
        what = "main could not be verified" if broken else "main is red before the sprint"
        planning = sprint.planning
        planning.failure = f"{what}: {fact.internal_error or red_line(fact)}"
        planning.failure_log, planning.failure_kind = fact.log, "" if broken else "red_main"
        enter(sprint, "ended")
        sprint.ended_at = evaluation.now


def _main_verified_again(evaluation: Evaluation, fact: WorkEnded, *, red: bool) -> None:
    health, main = evaluation.sprint.main_health, evaluation.sprint.settings.main_branch
    if not red or fact.internal_error:
        # If main cannot be verified by itself, a change is judged by its own result.
        health.last_green = fact.base or evaluation.state.main_commit()
        return
    by = f" by {fact.main_author}" if fact.main_author else ""
    health.red_commit = fact.base
    health.red_summary = f"{main} itself is red since {fact.base[:12]}{by}: {red_line(fact)}"


def outcome_of(evaluation: Evaluation, task: Task, work: Work, fact: WorkEnded) -> Outcome | None:
    """Return the result of a verification; None: it was red for the first time and is run again."""
    health = evaluation.sprint.main_health
    tests_disappeared = fact.skipped == "unverified" and bool(health.verify_line)
    ok = not is_red(fact) and not tests_disappeared
    if not ok and work.tries < _MAX_RUNS:
        again = _replace(work, tries=work.tries + 1)
        evaluation.start(task, again, "verification failed: run again")
        return None
    task.attempts.reset()
    missing = f"nothing is left of what verified main ({health.verify_line})"
    if health.baseline == "none" and fact.skipped == "unverified":
        # Main was empty before: only now it is known that there are no tests.
        health.baseline = "unverified"
    health.verify_line = health.verify_line or fact.verify_command
    proof = Verified(
        head=work.head,
        base=fact.base,
        ok=ok,
        log=fact.log,
        # A red result passes only while main is red itself, as the user allowed.
        tolerated=not ok and health.baseline == "red",
        tree=fact.tree,
        command=fact.verify_command,
        summary=fact.last_line,
    )
    return Outcome(proof=proof, line="" if ok else missing if tests_disappeared else red_line(fact))


def reject_red(evaluation: Evaluation, task: Task, outcome: Outcome) -> None:
    """Send a red change back with the log, unless main itself may be red."""
    if main_is_not_suspect(evaluation.sprint, outcome.proof.base):
        _blame(evaluation, task, outcome)
        return
    task.merge.verified, task.merge.suspect = None, outcome
    _wait(evaluation, task, "its result is red: main is being verified by itself")


def main_is_not_suspect(sprint: Sprint, base: str) -> bool:
    """True if `base` is known to be green, or if no green main was ever recorded.

    Without a green main nothing shows whose failure it is, so the change is sent back.
    """
    health = sprint.main_health
    known = health.baseline == "green" and bool(health.last_green)
    return not known or base in ("", health.last_green)


def red_reason(line: str) -> str:
    return f"verification of the merged result failed: {line}"


def _blame(evaluation: Evaluation, task: Task, failure: Outcome) -> None:
    task.merge.verified = failure.proof
    send_back_or_escalate(evaluation, task, failure.proof.head, red_reason(failure.line))


def red_result(_evaluation: Evaluation, task: Task) -> Outcome | None:
    """The merged result is red, and main itself may be red."""
    return task.merge.suspect


def settle_suspect(evaluation: Evaluation, task: Task, failure: Outcome) -> None:
    """Verify main alone: red, escalate; green, start a fix round."""
    health, base = evaluation.sprint.main_health, failure.proof.base
    outdated = task.change.head != failure.proof.head or base != evaluation.state.main_commit()
    if task.status is not Status.IN_REVIEW or task.merge.unverified or task.work or outdated:
        # The head or main has moved, so the result is verified anew.
        task.merge.suspect = task.merge.waiting = None
    elif main_is_not_suspect(evaluation.sprint, base):
        task.merge.suspect = task.merge.waiting = None
        _blame(evaluation, task, failure)
    elif base != health.red_commit:
        _verify_main(evaluation, "is main itself red?")
    elif _is_escalated_with_red_main(evaluation):
        _wait(evaluation, task, health.red_summary)
    else:
        task.merge.suspect = task.merge.waiting = None
        health.escalated_with = task.id
        again = evaluation.new_work(task, "verify", head=task.change.head)
        evaluation.escalate(task, health.red_summary, again)


def _is_escalated_with_red_main(evaluation: Evaluation) -> bool:
    """True if a task was escalated already: a red main needs one issue only."""
    health = evaluation.sprint.main_health
    task = evaluation.state.tasks.get(health.escalated_with)
    return bool(task and task.status is Status.ESCALATED and task.reason == health.red_summary)


def waits_for_main(sprint: Sprint, task: Task) -> bool:
    """True if only a person can help, by repairing main."""
    failure = task.merge.suspect
    return failure is not None and failure.proof.base == sprint.main_health.red_commit


def _wait(evaluation: Evaluation, task: Task, what: str) -> None:
    now, waiting = evaluation.now, task.merge.waiting
    if waiting is None or waiting.what != what:
        task.merge.waiting = MergeWait(head=task.change.head, what=what, since=now, until=now)
