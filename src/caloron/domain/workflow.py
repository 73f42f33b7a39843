"""What follows when an agent's work, or a verification, comes to its end."""

from __future__ import annotations

import msgspec

from caloron.domain import breadcrumbs, landing, texts, train
from caloron.domain.actions import OpenPull, PostReview, Push
from caloron.domain.doubts import is_sound, red_reason, reject_red
from caloron.domain.facts import WorkEnded
from caloron.domain.feedback import Feedback, feedback_yaml, joined
from caloron.domain.observations import marker
from caloron.domain.providers import said_no
from caloron.domain.review import Approved, ChangesNeeded, holds_both, parse_verdict
from caloron.domain.sprint import Task, Work, pull_of
from caloron.domain.status import Status
from caloron.domain.turn import Turn
from caloron.domain.verifying import judged, reject

#: The roles that share one conversation: whoever wrote the change goes on with it.
_AUTHOR = ("implement", "fix", "resolve")
#: The provider said no: nobody died of that.
_REFUSED = ("auth", "quota", "rate_limit")
_MAX_FAILURES = 2
_REASON = 500
_MAX_ASKS = 2


def work_ended(turn: Turn, fact: WorkEnded) -> None:
    """Take in the end of one attempt; one that is not the task's current work is old news."""
    task = turn.state.tasks.get(fact.task)
    work = task.work if task else None
    if task is None or work is None or work.item != fact.item or fact.token <= work.taken_in:
        return
    work = msgspec.structs.replace(work, taken_in=fact.token)
    task.work = None
    breadcrumbs.ended(task, fact.item, breadcrumbs.outcome_of(fact), fact.head)
    if fact.session and fact.role in _AUTHOR:
        task.session = fact.session
    if fact.trouble == "overflow":
        # The conversation is what it failed of: the next attempt begins anew.
        task.session = ""
    if said := fact.feedback or _crashed(task, fact):
        cause = f"{work.item.rsplit('/', 1)[1]}-{fact.token}"
        turn.comment(task, "feedback", cause, feedback_yaml(said))
    if fact.feedback:
        task.feedback = joined(task.feedback, fact.feedback)
    if said_no(turn, fact):
        turn.start(task, work, fact.detail)
    elif fact.fault:
        _failed(turn, task, work, fact.fault)
    elif fact.role == "verify":
        _verify_ended(turn, task, work, fact)
    elif fact.role in ("review", "check"):
        _judged(turn, task, work, fact)
    else:
        _changed(turn, task, work, fact)


def _crashed(task: Task, fact: WorkEnded) -> Feedback | None:
    """What stands on the issue for an agent that died without a word; no word of it is counted."""
    died = fact.exit_code or fact.timed_out or fact.over
    nothing_left = fact.role == "check" or (fact.role in _AUTHOR and fact.head == fact.base)
    if not died or not nothing_left or fact.fault or fact.trouble in _REFUSED:
        return None
    used = fact.usage
    return Feedback(
        task_id=task.id,
        agent_role="checker" if fact.role == "check" else "developer",
        blockers=(" ".join(_how_it_failed(fact).split())[:_REASON],),
        tokens_consumed=used.tokens_in + used.tokens_out if used else 0,
        self_assessment="crashed",
    )


def _failed(turn: Turn, task: Task, work: Work, reason: str) -> None:
    """One more attempt at once, which is told why, then a person."""
    reason = " ".join(reason.split())[:_REASON]
    work = msgspec.structs.replace(work, note=reason)
    task.failures += 1
    if task.failures < _MAX_FAILURES:
        turn.start(task, work, reason)
    else:
        turn.escalate(task, reason, held=_alone(turn, task, work))


def _alone(turn: Turn, task: Task, work: Work) -> Work | None:
    """What goes on for this task: not the batch, which goes on without it, nor main."""
    if task.landed:
        return None
    return turn.new_work(task, work.role, head=task.head) if work.heads else work


def _how_it_failed(fact: WorkEnded) -> str:
    if fact.timed_out:
        return "the agent ran out of time"
    if fact.over:
        return f"the agent was ended: {fact.over}"
    if fact.trouble:
        return f"the agent failed ({fact.trouble}): {fact.detail or fact.last_line}"
    if fact.exit_code:
        return f"the agent ended with exit code {fact.exit_code}: {fact.last_line or 'no output'}"
    return ""


def _changed(turn: Turn, task: Task, work: Work, fact: WorkEnded) -> None:
    committed = fact.head != fact.base
    if fact.conflicts:
        left = ", ".join(fact.conflicts)
        _failed(turn, task, work, f"conflict markers are left in {left}")
    elif not committed and (failure := _how_it_failed(fact)):
        _failed(turn, task, work, failure)
    elif not committed and work.role == "fix" and _is_red(task):
        # The failure may be a flaky test's, which no change could fix.
        reason = "the fix round changed nothing: verified once more"
        turn.move(task, Status.IN_REVIEW, reason)
        again = turn.new_work(task, "verify", head=task.head, reason=reason)
        turn.start(task, again, reason)
    elif not committed and work.role != "implement":
        said = f": {fact.last_line}" if fact.last_line else ""
        _failed(turn, task, work, f"the {work.role} round changed nothing{said}")
    elif not committed:
        task.failures, task.interventions, task.restarts = 0, 0, 0
        task.empty, task.head = True, fact.head
        turn.move(task, Status.IN_REVIEW, "the agent found nothing to change")
    else:
        task.failures, task.interventions, task.restarts = 0, 0, 0
        task.empty = False
        publish(turn, task, fact.head)


def _is_red(task: Task) -> bool:
    verified = task.verified
    return verified is not None and verified.head == task.head and not verified.passes


def publish(turn: Turn, task: Task, head: str, *, again: bool = False) -> None:
    """Push the new head, and open a pull request unless one is open.

    `again`: its branch was deleted, so this is another push than the one that made it.
    """
    if again:
        task.pushed, task.pushed_again = "", task.pushed_again + 1
    old = task.pushed or (f"again-{task.pushed_again}" if again else "new")
    task.head, task.stale_merges = head, 0
    turn.move(task, Status.IN_PROGRESS)
    pull = pull_of(turn.state, task)
    is_open = pull is not None and pull.state == "open"
    turn.do(
        Push(
            key=f"push/{task.branch}/{old}/{head}",
            task=task.id,
            branch=task.branch,
            old=task.pushed,
            new=head,
            pull=task.pull if is_open else None,
        )
    )
    if not is_open:
        open_pull(turn, task)


def open_pull(turn: Turn, task: Task) -> None:
    turn.do(
        OpenPull(
            key=texts.pull_key(turn.sprint.id, task.id, task.generation),
            task=task.id,
            title=texts.pull_title(task),
            body=texts.pull_body(turn.sprint, task),
            branch=task.branch,
        )
    )


def _judged(turn: Turn, task: Task, work: Work, fact: WorkEnded) -> None:
    verdict = parse_verdict(fact.answer)
    if failure := _how_it_failed(fact):
        _failed(turn, task, work, failure)
        return
    task.failures, task.interventions, task.restarts = 0, 0, 0
    if verdict is None:
        _ask_again(turn, task, work, fact)
    elif isinstance(verdict, Approved) and work.edits != task.edits:
        # It agrees with a text that is not what is wanted any more.
        again = turn.new_work(task, work.role, head=work.head, log=work.log)
        turn.start(task, again, "the text of the task was changed")
    elif work.role == "check":
        _check_judged(turn, task, work, verdict)
    elif task.empty:
        _empty_change_judged(turn, task, work, verdict, fact.answer)
    else:
        _post_verdict(turn, task, work, verdict, fact.answer)


def _ask_again(turn: Turn, task: Task, work: Work, fact: WorkEnded) -> None:
    """An unclear verdict is asked for once more and is never an approval."""
    said = "it holds both verdicts" if holds_both(fact.answer) else fact.last_line
    reason = f"no clear verdict in the {work.role}'s answer: {said or 'it was empty'}"
    work = msgspec.structs.replace(work, note=reason)
    if work.asks < _MAX_ASKS:
        turn.start(task, msgspec.structs.replace(work, asks=work.asks + 1), reason)
    else:
        turn.escalate(task, reason, held=work)


def _check_judged(turn: Turn, task: Task, work: Work, verdict: Approved | ChangesNeeded) -> None:
    cause = f"{work.item.rsplit('/', 1)[1]}-{work.taken_in}"
    if isinstance(verdict, Approved):
        turn.complete(task, "check passed", "Check passed: APPROVED")
    else:
        turn.comment(task, "verdict", cause, f"Check failed: {verdict.reason}")
        turn.escalate(task, f"check failed: {verdict.reason}", held=work)


def _empty_change_judged(
    turn: Turn, task: Task, work: Work, verdict: Approved | ChangesNeeded, answer: str
) -> None:
    if isinstance(verdict, Approved):
        turn.complete(task, "nothing to do", "Nothing to do: the reviewer agrees.")
    else:
        details = f"{verdict.reason}\n\n{_explanation(answer)}".strip()
        reject(turn, task, work.head, verdict.reason, details)


def _post_verdict(
    turn: Turn, task: Task, work: Work, verdict: Approved | ChangesNeeded, answer: str
) -> None:
    """The verdict becomes a review on the forge; what is seen there decides."""
    if task.pull is None:
        return
    approved = isinstance(verdict, Approved)
    text = "APPROVED" if isinstance(verdict, Approved) else f"CHANGES_NEEDED: {verdict.reason}"
    # Claims are counted for each item: the same head may be read by another item later.
    claim = f"{work.item.rsplit('/', 1)[1]}-{work.taken_in}"
    key = f"review/{task.pull}/{work.head}/{work.round}/{claim}"
    task.judged, task.verdict_key = work.head, key
    turn.do(
        PostReview(
            key=key,
            task=task.id,
            pull=task.pull,
            head=work.head,
            verdict="approved" if approved else "changes_requested",
            body="\n\n".join(part for part in (text, _explanation(answer), marker(key)) if part),
        )
    )


def _explanation(answer: str) -> str:
    """What a reviewer said before the verdict; it must not look like a marker of ours."""
    lines = answer.rstrip().splitlines()[:-1]
    return texts.unmarked("\n".join(lines).strip())


def _verify_ended(turn: Turn, task: Task, work: Work, fact: WorkEnded) -> None:
    alone = not work.heads and not task.landed
    if fact.conflicts and alone:
        turn.move(task, Status.IN_PROGRESS, f"conflict with main in {', '.join(fact.conflicts)}")
        resolve = turn.new_work(task, "resolve", head=task.head, reason=", ".join(fact.conflicts))
        turn.start(task, resolve)
        return
    outcome = judged(turn, task, work, fact)
    if outcome is None:
        return
    if task.landed:
        landing.verified(turn, task, fact, outcome)
    elif work.heads:
        train.verified(turn, work, fact, outcome)
    elif outcome.passes:
        task.verified = outcome.proof
    elif work.reason and is_sound(turn.sprint, outcome.proof.base):
        # Red again after a fix round that changed nothing.
        task.verified = outcome.proof
        reason = f"{red_reason(outcome.line)}; the fix round changed nothing"
        turn.escalate(task, reason, held=work)
    else:
        reject_red(turn, task, outcome)
