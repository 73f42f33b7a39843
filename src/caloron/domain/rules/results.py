"""The end of an agent's work or of a verification, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

import msgspec

from caloron.domain.model.effects import HoldWork, OpenPull, PostReview, Push
from caloron.domain.model.facts import Result, WorkEnded, classify
from caloron.domain.model.feedback import Feedback, feedback_yaml, joined
from caloron.domain.model.roles import ROLES, Role, WorkId
from caloron.domain.model.snapshots import marker
from caloron.domain.model.sprint import Unavailable
from caloron.domain.model.status import Step
from caloron.domain.model.task import Criterion, Task, Work
from caloron.domain.reporting import forge_texts, work_log
from caloron.domain.reporting.waiting import provider_of
from caloron.domain.rules import merge_queue, post_merge_check
from caloron.domain.rules.evaluation import Evaluation
from caloron.domain.rules.verdicts import (
    has_both,
    parse_criteria,
    parse_verdict,
    send_back_or_escalate,
)
from caloron.domain.rules.verification import (
    main_is_not_suspect,
    outcome_of,
    red_reason,
    reject_red,
)
from caloron.durations import Backoff

_MAX_FAILURES = 2
_MAX_TRIES = 2
#: The summaries of these many rounds are kept besides the first.
_MOST_LATER_ROUNDS = 4
_LONGEST_REASON = 500
#: For a provider that does not say how long to wait.
_PROVIDER_BACKOFF = Backoff(60.0, 3600.0)
#: After these results an agent has read its whole prompt.
_ANSWERED = ("committed", "unchanged", "answered")
_replace = msgspec.structs.replace


class Ended(NamedTuple):
    """An attempt that ended: the task, its work, the fact and its interpretation."""

    task: Task
    work: Work
    fact: WorkEnded
    result: Result

    @property
    def claim(self) -> str:
        """The number and role of the work, and its claim: one comment or review per claim."""
        return f"{WorkId.parse(self.work.item).name}-{self.work.last_token}"


class ResultRule(NamedTuple):
    """In these steps, after this result, this action is taken, and leads to these steps."""

    steps: Set[Step]
    when: Callable[[Ended], bool]
    do: Callable[[Evaluation, Ended], None]
    then: Set[Step]


def work_ended(evaluation: Evaluation, fact: WorkEnded) -> None:
    """Take in the end of an attempt, if it is the current one of its task."""
    task = evaluation.state.tasks.get(fact.task)
    work = task.work.ended_by(fact.item, fact.token) if task and task.work else None
    if task is None or work is None:
        return
    task.work = None
    ended = Ended(task, work, fact, classify(fact))
    work_log.ended(task, fact.item, work_log.outcome_of(fact, ended.result), fact.head)
    if ended.result.kind in _ANSWERED:
        unread = task.conversation.unread
        task.conversation.unread = tuple(c for c in unread if c not in fact.comments)
    if fact.session and ROLES[fact.role].writes_code:
        task.attempts.session = fact.session
    if fact.provider_error == "overflow":
        # The conversation was too long: the next attempt begins a new one.
        task.attempts.session = ""
    if feedback := fact.feedback or _crashed(ended):
        evaluation.comment(task, "feedback", ended.claim, feedback_yaml(feedback))
    if fact.feedback:
        task.log.feedback = joined(task.log.feedback, fact.feedback)
    if provider_refused(evaluation, fact):
        evaluation.start(task, work, fact.provider_message)
    else:
        steps = _STEPS[fact.role]
        rule = next(rule for rule in RESULTS if rule.steps & steps and rule.when(ended))
        rule.do(evaluation, ended)


def _crashed(ended: Ended) -> Feedback | None:
    """Return feedback for an agent that died without giving any; it counts for no average."""
    task, _, fact, result = ended
    if result.kind != "failed" or fact.internal_error or fact.role == "review":
        return None
    used = fact.usage
    return Feedback(
        task_id=task.id,
        agent_role="checker" if fact.role == "check" else "developer",
        blockers=(_one_line(f"the agent {result.reason}"),),
        tokens_consumed=used.tokens_in + used.tokens_out if used else 0,
        self_assessment="crashed",
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_REASON]


def _retry(evaluation: Evaluation, ended: Ended) -> None:
    """Try once more with the reason, then escalate."""
    task, work, fact, result = ended
    match result.kind:
        case "conflict":
            reason = f"conflict markers are left in {result.reason}"
        case "unchanged":
            words = f": {fact.last_line}" if fact.last_line else ""
            reason = f"the {work.role} round changed nothing{words}"
        case _:
            reason = fact.internal_error or f"the agent {result.reason}"
    reason = _one_line(reason)
    work = _replace(work, previous_failure=reason)
    task.attempts.failures += 1
    if task.attempts.failures < _MAX_FAILURES:
        evaluation.start(task, work, reason)
    elif task.merge.unverified:
        post_merge_check.give_up(evaluation, task, reason)
    elif work.batch:
        # The others of the batch go on without this task, so it resumes alone.
        alone = evaluation.new_work(task, work.role, head=task.change.head)
        evaluation.escalate(task, reason, alone)
    else:
        evaluation.escalate(task, reason, work)


def _publish_commit(evaluation: Evaluation, ended: Ended) -> None:
    """Push the commit, and open a pull request unless one is open."""
    task, fact = ended.task, ended.fact
    task.forgive()
    task.change.is_empty = False
    if fact.role == "implement":
        task.change.summaries = ()
    if fact.summary:
        first, later = task.change.summaries[:1], task.change.summaries[1:]
        task.change.summaries = (*first, *later[-_MOST_LATER_ROUNDS + 1 :], fact.summary)
    publish(evaluation, task, fact.head)


def _verify_again(evaluation: Evaluation, ended: Ended) -> None:
    """Verify once more: a flaky test may have failed, which no change could fix."""
    task, reason = ended.task, "the fix round changed nothing: verified once more"
    evaluation.move(task, Step.VERIFYING, reason)
    evaluation.start_new(task, "verify", head=task.change.head, reason=reason, why=reason)


def _review_nothing(evaluation: Evaluation, ended: Ended) -> None:
    """Ask a reviewer whether there is nothing to do."""
    task = ended.task
    task.forgive()
    task.change.is_empty, task.change.head = True, ended.fact.head
    evaluation.move(task, Step.REVIEW_QUEUED, "the agent found nothing to change")


def publish(evaluation: Evaluation, task: Task, head: str, *, again: bool = False) -> None:
    """Push the new head, and open a pull request unless one is open.

    `again`: its branch was deleted, so the effect needs a key of its own.
    """
    change = task.change
    if again:
        change.pushed, change.repushes = "", change.repushes + 1
    old = change.pushed or (f"again-{change.repushes}" if again else "new")
    change.head, task.merge.stale_merges = head, 0
    evaluation.move(task, Step.PUBLISHING)
    pull = evaluation.state.pull_of(task)
    is_open = pull is not None and pull.state == "open"
    evaluation.do(
        Push(
            key=f"push/{change.branch}/{old}/{head}",
            task=task.id,
            branch=change.branch,
            old=change.pushed,
            new=head,
            pull=task.links.pull if is_open else None,
        )
    )
    if not is_open:
        open_pull(evaluation, task)


def open_pull(evaluation: Evaluation, task: Task) -> None:
    # The description follows once the pull request is seen: the text of an effect never changes.
    task.log.described = ""
    evaluation.do(
        OpenPull(
            key=forge_texts.pull_key(evaluation.sprint.id, task.id, task.links.generation),
            task=task.id,
            title=forge_texts.pull_title(task),
            body=forge_texts.pull_body(evaluation.sprint, task),
            branch=task.change.branch,
        )
    )


def _judge_check(evaluation: Evaluation, ended: Ended) -> None:
    """Complete or escalate the check; ask once more if the answer is unclear or outdated."""
    task, work, _, _ = ended
    request = _clear_request(evaluation, ended)
    if request is None:
        return
    if not request:
        evaluation.complete(task, "check passed", "Check passed: APPROVED")
    else:
        evaluation.comment(task, "verdict", ended.claim, f"Check failed: {request}")
        evaluation.escalate(task, f"check failed: {request}", work)


def _judge_review(evaluation: Evaluation, ended: Ended) -> None:
    """Post the verdict; ask once more if the answer is unclear or outdated."""
    task, work, fact, _ = ended
    request = _clear_request(evaluation, ended)
    if request is None:
        return
    if not task.change.is_empty:
        _post_verdict(evaluation, ended, request)
    elif not request:
        evaluation.complete(task, "nothing to do", "Nothing to do: the reviewer agrees.")
    else:
        details = f"{request}\n\n{_explanation(fact.answer)}".strip()
        send_back_or_escalate(evaluation, task, work.head, request, details)


def _clear_request(evaluation: Evaluation, ended: Ended) -> str | None:
    """Return the request of a clear verdict, empty for an approval; None: the work runs again."""
    task, work, fact, _ = ended
    request = parse_verdict(fact.answer)
    criteria = parse_criteria(fact.answer, task.plan.acceptance)
    task.forgive()
    unmet = [criterion for criterion in criteria if not criterion.met]
    if request is None or (unmet and not request):
        _ask_again(evaluation, ended, unmet)
        return None
    if not request and work.edits != task.conversation.edits:
        # The approval is about a text of the task that was changed since.
        evaluation.start_again(task, work, "the text of the task was changed")
        return None
    task.review.criteria, task.review.criteria_head = criteria, work.head
    return request


def _ask_again(evaluation: Evaluation, ended: Ended, unmet: Sequence[Criterion]) -> None:
    """Ask once more after an unclear verdict, which is never an approval."""
    task, work, fact, _ = ended
    if has_both(fact.answer):
        problem = "it holds both verdicts"
    elif unmet and parse_verdict(fact.answer) is not None:
        problem = f"it approves, and says that criterion {unmet[0].number} is not met"
    else:
        problem = fact.last_line or "it was empty"
    reason = f"no clear verdict in the {work.role}'s answer: {problem}"
    work = _replace(work, previous_failure=reason)
    if work.tries < _MAX_TRIES:
        evaluation.start(task, _replace(work, tries=work.tries + 1), reason)
    else:
        evaluation.escalate(task, reason, work)


def _post_verdict(evaluation: Evaluation, ended: Ended, request: str) -> None:
    """Post a request for changes, or an approval, as a review; its snapshot decides."""
    task, work, fact, _ = ended
    if task.links.pull is None:
        return
    text = f"CHANGES_NEEDED: {request}" if request else "APPROVED"
    # Claims are counted for each item: the same head may be read by another item later.
    key = f"review/{task.links.pull}/{work.head}/{work.round}/{ended.claim}"
    task.review.posted_for, task.review.last_key = work.head, key
    evaluation.do(
        PostReview(
            key=key,
            task=task.id,
            pull=task.links.pull,
            head=work.head,
            verdict="changes_requested" if request else "approved",
            body="\n\n".join(filter(None, (text, _explanation(fact.answer), marker(key)))),
        )
    )


def _explanation(answer: str) -> str:
    """Return the text before the verdict; it must not look like a marker of ours."""
    lines = answer.rstrip().splitlines()[:-1]
    return forge_texts.unmarked("\n".join(lines).strip())


def _resolve(evaluation: Evaluation, ended: Ended) -> None:
    """Have an agent resolve the conflict with main."""
    task, files = ended.task, ended.result.reason
    evaluation.move(task, Step.RESOLVING, f"conflict with main in {files}")
    evaluation.start_new(task, "resolve", head=task.change.head, reason=files)


def _judge_verification(evaluation: Evaluation, ended: Ended) -> None:
    """Green, go on to the review or the merge; red twice, blame the change or suspect main."""
    task, work, fact, _ = ended
    outcome = outcome_of(evaluation, task, work, fact)
    if outcome is None:
        return
    if task.merge.unverified:
        post_merge_check.verification_ended(evaluation, task, fact, outcome)
    elif work.batch:
        merge_queue.batch_verified(evaluation, work, fact, outcome)
    elif outcome.proof.passes:
        task.merge.verified = outcome.proof
    elif work.reason and main_is_not_suspect(evaluation.sprint, outcome.proof.base):
        # Red again after a fix round that changed nothing.
        task.merge.verified = outcome.proof
        reason = f"{red_reason(outcome.line)}; the fix round changed nothing"
        evaluation.escalate(task, reason, work)
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
    task = ended.task
    verified = task.merge.verified_head(task.change.head)
    return ended.result.kind == "unchanged" and verified is not None and not verified.passes


def _unchanged(ended: Ended) -> bool:
    """The agent changed nothing."""
    return ended.result.kind == "unchanged"


def _any(_ended: Ended) -> bool:
    """Any other result."""
    return True


_STEPS: dict[Role, Set[Step]] = {
    **{role: {spec.step} for role, spec in ROLES.items() if spec.step},
    "verify": {Step.VERIFYING, Step.MERGE_VERIFYING},
}
_WRITING = {spec.step for spec in ROLES.values() if spec.step and spec.writes_code}
_JUDGING = {spec.step for spec in ROLES.values() if spec.step and spec.gives_verdict}
_WORKING = _WRITING | _JUDGING | _STEPS["verify"]

#: What follows from the end of work; the first row whose result matches is applied.
RESULTS: tuple[ResultRule, ...] = (
    ResultRule(_WORKING, _internal_error, _retry, {Step.ESCALATED}),
    ResultRule(_STEPS["verify"], _conflict_with_main, _resolve, {Step.RESOLVING}),
    ResultRule(
        _STEPS["verify"],
        _any,
        _judge_verification,
        {
            Step.REVIEW_QUEUED,
            Step.AWAITING_APPROVAL,
            Step.MERGE_QUEUED,
            Step.FIXING,
            Step.MAIN_SUSPECT,
            Step.ESCALATED,
        },
    ),
    ResultRule(_WRITING | _JUDGING, _failed_agent, _retry, {Step.ESCALATED}),
    ResultRule(_STEPS["check"], _any, _judge_check, {Step.DONE, Step.ESCALATED}),
    ResultRule(
        _STEPS["review"],
        _any,
        _judge_review,
        {Step.POSTING_VERDICT, Step.FIXING, Step.DONE, Step.ESCALATED},
    ),
    ResultRule(_WRITING, _conflict_left, _retry, {Step.ESCALATED}),
    ResultRule(_WRITING, _committed, _publish_commit, {Step.PUBLISHING}),
    ResultRule(_STEPS["fix"], _unchanged_and_red, _verify_again, {Step.VERIFYING}),
    ResultRule(_STEPS["implement"], _unchanged, _review_nothing, {Step.REVIEW_QUEUED}),
    ResultRule(_WRITING, _any, _retry, {Step.ESCALATED}),
)


def provider_refused(evaluation: Evaluation, fact: WorkEnded) -> bool:
    """Take in a refusal of the model's provider; True: the same work is to be tried again later.

    A quota or a rate limit is waited for, and a bad credential pauses the sprint until a person
    helps. Neither counts as a failure of the agent.
    """
    availability, name = evaluation.sprint.availability, fact.framework
    if fact.provider_error in ("quota", "rate_limit"):
        _wait_for_provider(evaluation, fact)
        return True
    if fact.provider_error == "auth":
        availability.pause_reason = (
            f"{name or 'the agent'} has no valid credential:"
            f" {fact.provider_message or 'it was refused'}"
        )
        return True
    if not fact.provider_error:
        availability.providers = {k: v for k, v in availability.providers.items() if k != name}
    return False


def _wait_for_provider(evaluation: Evaluation, fact: WorkEnded) -> None:
    sprint, name = evaluation.sprint, fact.framework
    before = sprint.availability.providers.get(name)
    times = before.times + 1 if before else 1
    known = fact.reset_at if fact.reset_at and fact.reset_at > evaluation.now else None
    until = known or evaluation.now + _PROVIDER_BACKOFF.pause(times)
    pause = Unavailable(
        until=max(until, before.until) if before else until,
        what="quota" if fact.provider_error == "quota" else "rate limit",
        detail=fact.provider_message,
        times=times,
    )
    sprint.availability.providers = sprint.availability.providers | {name: pause}
    for task in evaluation.state.tasks.values():
        work = task.work
        waits = work is not None and work.item in evaluation.state.queued
        if work and waits and ROLES[work.role].needs_agent and provider_of(sprint, task) == name:
            evaluation.do(HoldWork(item=work.item, until=pause.until))
