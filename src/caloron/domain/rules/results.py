"""What follows when an agent's work, or a verification, comes to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from caloron.domain.model.effects import OpenPull, PostReview, Push
from caloron.domain.model.facts import Result, WorkEnded, classify
from caloron.domain.model.feedback import Feedback, feedback_yaml, joined
from caloron.domain.model.roles import ROLES, Role, WorkId
from caloron.domain.model.snapshots import marker
from caloron.domain.model.sprint import pull_of
from caloron.domain.model.status import Status, Step
from caloron.domain.model.task import Task, Work
from caloron.domain.reporting import forge_texts, work_log
from caloron.domain.rules import merge_train, post_merge_check
from caloron.domain.rules.availability import said_no
from caloron.domain.rules.evaluation import Evaluation
from caloron.domain.rules.verdicts import Approved, ChangesNeeded, holds_both, parse_verdict
from caloron.domain.rules.verification import (
    judged,
    main_is_not_suspect,
    red_reason,
    reject,
    reject_red,
)

_MAX_FAILURES = 2
_REASON = 500
_MAX_ASKS = 2


def work_ended(evaluation: Evaluation, fact: WorkEnded) -> None:
    """Take in the end of one attempt; one that is not the task's current work is old news."""
    task = evaluation.state.tasks.get(fact.task)
    work = task.work if task else None
    if task is None or work is None or work.item != fact.item or fact.token <= work.last_token:
        return
    work = msgspec.structs.replace(work, last_token=fact.token)
    task.work = None
    result = classify(fact)
    work_log.ended(task, fact.item, work_log.outcome_of(fact, result), fact.head)
    if fact.session and ROLES[fact.role].writes_code:
        task.attempts.session = fact.session
    if fact.provider_error == "overflow":
        # The conversation is what it failed of: the next attempt begins anew.
        task.attempts.session = ""
    if said := fact.feedback or _crashed(task, fact, result):
        cause = f"{WorkId.parse(work.item).name}-{fact.token}"
        evaluation.comment(task, "feedback", cause, feedback_yaml(said))
    if fact.feedback:
        task.log.feedback = joined(task.log.feedback, fact.feedback)
    if said_no(evaluation, fact):
        evaluation.start(task, work, fact.provider_message)
    else:
        ended = Ended(task, work, fact, result)
        steps = _STEPS[fact.role]
        rule = next(rule for rule in RESULTS if rule.steps & steps and rule.when(ended))
        rule.do(evaluation, ended)


class Ended(NamedTuple):
    """An attempt that ended: the task, its work, the fact and its interpretation."""

    task: Task
    work: Work
    fact: WorkEnded
    result: Result


class ResultRule(NamedTuple):
    """In these steps, after this result, this action is taken, and leads to these steps."""

    steps: frozenset[Step]
    when: Callable[[Ended], bool]
    do: Callable[[Evaluation, Ended], None]
    then: frozenset[Step]


def _crashed(task: Task, fact: WorkEnded, result: Result) -> Feedback | None:
    """Return feedback for an agent that died without giving any; it counts for no average."""
    if result.kind != "failed" or fact.internal_error or fact.role == "review":
        return None
    used = fact.usage
    return Feedback(
        task_id=task.id,
        agent_role="checker" if fact.role == "check" else "developer",
        blockers=(" ".join(f"the agent {result.reason}".split())[:_REASON],),
        tokens_consumed=used.tokens_in + used.tokens_out if used else 0,
        self_assessment="crashed",
    )


def _failed(evaluation: Evaluation, task: Task, work: Work, reason: str) -> None:
    """One more attempt at once, which is told why, then a person."""
    reason = " ".join(reason.split())[:_REASON]
    work = msgspec.structs.replace(work, previous_failure=reason)
    task.attempts.failures += 1
    if task.attempts.failures < _MAX_FAILURES:
        evaluation.start(task, work, reason)
    else:
        evaluation.escalate(task, reason, held=_alone(evaluation, task, work))


def _alone(evaluation: Evaluation, task: Task, work: Work) -> Work | None:
    """What goes on for this task: not the batch, which goes on without it, nor main."""
    if task.merge.unverified:
        return None
    return evaluation.new_work(task, work.role, head=task.change.head) if work.batch else work


def _publish_commit(evaluation: Evaluation, ended: Ended) -> None:
    """Push the commit, and open a pull request unless one is open."""
    ended.task.forgive()
    ended.task.change.is_empty = False
    publish(evaluation, ended.task, ended.fact.head)


def _verify_again(evaluation: Evaluation, ended: Ended) -> None:
    """Verify once more: a flaky test may have failed, which no change could fix."""
    task, reason = ended.task, "the fix round changed nothing: verified once more"
    evaluation.move(task, Status.IN_REVIEW, reason)
    again = evaluation.new_work(task, "verify", head=task.change.head, reason=reason)
    evaluation.start(task, again, reason)


def _review_nothing(evaluation: Evaluation, ended: Ended) -> None:
    """Ask a reviewer whether there is nothing to do."""
    task = ended.task
    task.forgive()
    task.change.is_empty, task.change.head = True, ended.fact.head
    evaluation.move(task, Status.IN_REVIEW, "the agent found nothing to change")


def _retry(evaluation: Evaluation, ended: Ended) -> None:
    """Try once more with the reason, then escalate."""
    task, work, fact, result = ended
    match result.kind:
        case "conflict":
            reason = f"conflict markers are left in {result.reason}"
        case "unchanged":
            said = f": {fact.last_line}" if fact.last_line else ""
            reason = f"the {work.role} round changed nothing{said}"
        case _:
            reason = fact.internal_error or f"the agent {result.reason}"
    _failed(evaluation, task, work, reason)


def _is_red(task: Task) -> bool:
    verified = task.merge.verified
    return verified is not None and verified.head == task.change.head and not verified.passes


def publish(evaluation: Evaluation, task: Task, head: str, *, again: bool = False) -> None:
    """Push the new head, and open a pull request unless one is open.

    `again`: its branch was deleted, so this is another push than the one that made it.
    """
    if again:
        task.change.pushed, task.change.repushes = "", task.change.repushes + 1
    old = task.change.pushed or (f"again-{task.change.repushes}" if again else "new")
    task.change.head, task.merge.stale_merges = head, 0
    evaluation.move(task, Status.IN_PROGRESS)
    pull = pull_of(evaluation.state, task)
    is_open = pull is not None and pull.state == "open"
    evaluation.do(
        Push(
            key=f"push/{task.change.branch}/{old}/{head}",
            task=task.id,
            branch=task.change.branch,
            old=task.change.pushed,
            new=head,
            pull=task.links.pull if is_open else None,
        )
    )
    if not is_open:
        open_pull(evaluation, task)


def open_pull(evaluation: Evaluation, task: Task) -> None:
    evaluation.do(
        OpenPull(
            key=forge_texts.pull_key(evaluation.sprint.id, task.id, task.links.generation),
            task=task.id,
            title=forge_texts.pull_title(task),
            body=forge_texts.pull_body(evaluation.sprint, task),
            branch=task.change.branch,
        )
    )


def _judge_answer(evaluation: Evaluation, ended: Ended) -> None:
    """Post the verdict; complete or escalate a check; ask once more if it is unclear."""
    task, work, fact, _ = ended
    verdict = parse_verdict(fact.answer)
    task.forgive()
    if verdict is None:
        _ask_again(evaluation, task, work, fact)
    elif isinstance(verdict, Approved) and work.edits != task.conversation.edits:
        # It agrees with a text that is not what is wanted any more.
        again = evaluation.new_work(task, work.role, head=work.head, log=work.verify_log)
        evaluation.start(task, again, "the text of the task was changed")
    elif work.role == "check":
        _check_judged(evaluation, task, work, verdict)
    elif task.change.is_empty:
        _empty_change_judged(evaluation, task, work, verdict, fact.answer)
    else:
        _post_verdict(evaluation, task, work, verdict, fact.answer)


def _ask_again(evaluation: Evaluation, task: Task, work: Work, fact: WorkEnded) -> None:
    """An unclear verdict is asked for once more and is never an approval."""
    said = "it holds both verdicts" if holds_both(fact.answer) else fact.last_line
    reason = f"no clear verdict in the {work.role}'s answer: {said or 'it was empty'}"
    work = msgspec.structs.replace(work, previous_failure=reason)
    if work.tries < _MAX_ASKS:
        evaluation.start(task, msgspec.structs.replace(work, tries=work.tries + 1), reason)
    else:
        evaluation.escalate(task, reason, held=work)


def _check_judged(
    evaluation: Evaluation, task: Task, work: Work, verdict: Approved | ChangesNeeded
) -> None:
    cause = f"{WorkId.parse(work.item).name}-{work.last_token}"
    if isinstance(verdict, Approved):
        evaluation.complete(task, "check passed", "Check passed: APPROVED")
    else:
        evaluation.comment(task, "verdict", cause, f"Check failed: {verdict.reason}")
        evaluation.escalate(task, f"check failed: {verdict.reason}", held=work)


def _empty_change_judged(
    evaluation: Evaluation, task: Task, work: Work, verdict: Approved | ChangesNeeded, answer: str
) -> None:
    if isinstance(verdict, Approved):
        evaluation.complete(task, "nothing to do", "Nothing to do: the reviewer agrees.")
    else:
        details = f"{verdict.reason}\n\n{_explanation(answer)}".strip()
        reject(evaluation, task, work.head, verdict.reason, details)


def _post_verdict(
    evaluation: Evaluation, task: Task, work: Work, verdict: Approved | ChangesNeeded, answer: str
) -> None:
    """The verdict becomes a review on the forge; what is seen there decides."""
    if task.links.pull is None:
        return
    approved = isinstance(verdict, Approved)
    text = "APPROVED" if isinstance(verdict, Approved) else f"CHANGES_NEEDED: {verdict.reason}"
    # Claims are counted for each item: the same head may be read by another item later.
    claim = f"{WorkId.parse(work.item).name}-{work.last_token}"
    key = f"review/{task.links.pull}/{work.head}/{work.round}/{claim}"
    task.review.posted_for, task.review.last_key = work.head, key
    evaluation.do(
        PostReview(
            key=key,
            task=task.id,
            pull=task.links.pull,
            head=work.head,
            verdict="approved" if approved else "changes_requested",
            body="\n\n".join(part for part in (text, _explanation(answer), marker(key)) if part),
        )
    )


def _explanation(answer: str) -> str:
    """What a reviewer said before the verdict; it must not look like a marker of ours."""
    lines = answer.rstrip().splitlines()[:-1]
    return forge_texts.unmarked("\n".join(lines).strip())


def _resolve(evaluation: Evaluation, ended: Ended) -> None:
    """Have an agent resolve the conflict with main."""
    task, files = ended.task, ended.result.reason
    evaluation.move(task, Status.IN_PROGRESS, f"conflict with main in {files}")
    evaluation.start(
        task, evaluation.new_work(task, "resolve", head=task.change.head, reason=files)
    )


def _judge_verification(evaluation: Evaluation, ended: Ended) -> None:
    """Green, go on to the review or the merge; red twice, blame the change or suspect main."""
    task, work, fact, _ = ended
    outcome = judged(evaluation, task, work, fact)
    if outcome is None:
        return
    if task.merge.unverified:
        post_merge_check.verified(evaluation, task, fact, outcome)
    elif work.batch:
        merge_train.verified(evaluation, work, fact, outcome)
    elif outcome.passes:
        task.merge.verified = outcome.proof
    elif work.reason and main_is_not_suspect(evaluation.sprint, outcome.proof.base):
        # Red again after a fix round that changed nothing.
        task.merge.verified = outcome.proof
        reason = f"{red_reason(outcome.line)}; the fix round changed nothing"
        evaluation.escalate(task, reason, held=work)
    else:
        reject_red(evaluation, task, outcome)


def _internal_error(ended: Ended) -> bool:
    """Caloron itself failed around the work."""
    return bool(ended.fact.internal_error)


def _failed_agent(ended: Ended) -> bool:
    """The agent failed, ran out of time or hit a limit, without a commit."""
    return ended.result.kind == "failed"


def _conflict_with_main(ended: Ended) -> bool:
    """The head cannot be merged into main."""
    alone = not ended.work.batch and not ended.task.merge.unverified
    return ended.result.kind == "conflict" and alone


def _conflict_left(ended: Ended) -> bool:
    """Conflict markers are left in files."""
    return ended.result.kind == "conflict"


def _committed(ended: Ended) -> bool:
    """The agent left a commit."""
    return ended.result.kind == "committed"


def _unchanged_and_red(ended: Ended) -> bool:
    """The agent changed nothing, and the head is red."""
    return ended.result.kind == "unchanged" and _is_red(ended.task)


def _unchanged(ended: Ended) -> bool:
    """The agent changed nothing."""
    return ended.result.kind == "unchanged"


def _any(_ended: Ended) -> bool:
    """Any other result."""
    return True


_STEPS: dict[Role, frozenset[Step]] = {
    "implement": frozenset({Step.IMPLEMENTING}),
    "fix": frozenset({Step.FIXING}),
    "resolve": frozenset({Step.RESOLVING}),
    "check": frozenset({Step.CHECKING}),
    "review": frozenset({Step.REVIEWING}),
    "verify": frozenset({Step.VERIFYING, Step.MERGE_VERIFYING}),
}
_WRITING = _STEPS["implement"] | _STEPS["fix"] | _STEPS["resolve"]
_JUDGING = _STEPS["review"] | _STEPS["check"]
_WORKING = _WRITING | _JUDGING | _STEPS["verify"]

#: What follows from the end of work; the first row whose result matches is applied.
RESULTS: tuple[ResultRule, ...] = (
    ResultRule(_WORKING, _internal_error, _retry, frozenset({Step.ESCALATED})),
    ResultRule(_STEPS["verify"], _conflict_with_main, _resolve, frozenset({Step.RESOLVING})),
    ResultRule(
        _STEPS["verify"],
        _any,
        _judge_verification,
        frozenset(
            {Step.REVIEW_QUEUED, Step.MERGE_QUEUED, Step.FIXING, Step.MAIN_SUSPECT, Step.ESCALATED}
        ),
    ),
    ResultRule(_WRITING | _JUDGING, _failed_agent, _retry, frozenset({Step.ESCALATED})),
    ResultRule(
        _JUDGING,
        _any,
        _judge_answer,
        frozenset({Step.POSTING_VERDICT, Step.FIXING, Step.DONE, Step.ESCALATED}),
    ),
    ResultRule(_WRITING, _conflict_left, _retry, frozenset({Step.ESCALATED})),
    ResultRule(_WRITING, _committed, _publish_commit, frozenset({Step.PUBLISHING})),
    ResultRule(_STEPS["fix"], _unchanged_and_red, _verify_again, frozenset({Step.VERIFYING})),
    ResultRule(_STEPS["implement"], _unchanged, _review_nothing, frozenset({Step.REVIEW_QUEUED})),
    ResultRule(_WRITING, _any, _retry, frozenset({Step.ESCALATED})),
)
