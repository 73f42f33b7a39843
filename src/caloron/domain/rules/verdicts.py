"""The verdicts of reviewers: how an answer is read, which verdict on a head decides, and when a
change that goes back for another fix round goes to a person instead.

A verdict has one of two forms, on the last line that is not empty. An answer that contains both
forms contradicts itself and is unclear.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from caloron.domain.model.snapshots import (
    PullSnapshot,
    ReviewSnapshot,
    Verdict,
    marker_key,
    moment,
    without_markers,
)
from caloron.domain.model.sprint import Sprint, is_ours
from caloron.domain.model.status import Step
from caloron.domain.model.task import Criterion, Task

if TYPE_CHECKING:
    from caloron.domain.rules.evaluation import Evaluation

_APPROVED = "APPROVED"
_CHANGES_NEEDED = "CHANGES_NEEDED"


def has_both(answer: str) -> bool:
    lines = [line.strip() for line in answer.splitlines()]
    return _APPROVED in lines and _CHANGES_NEEDED in answer


def parse_verdict(answer: str) -> str | None:
    """Return the requested changes, empty for an approval; None: the answer is unclear or empty."""
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if last == _APPROVED:
        # An approval is final, so the other word must not occur in any form.
        return None if _CHANGES_NEEDED in answer else ""
    head, colon, reason = last.partition(":")
    if head == _CHANGES_NEEDED and colon and reason.strip() and _APPROVED not in lines:
        return reason.strip()
    return None


_BOX = re.compile(r"[\s>*-]*(?:(\d{1,3})[.):]*\s+)?\[([ xX])\]\s*(.*)")
_NUMBER = re.compile(r"(?:criterion )?[#(*]*(\d{1,3})\b[.):*]*", re.IGNORECASE)
#: Also the dashes of typographers.
_AROUND = " \t*_-:.,;\u2013\u2014"
_LONGEST_REASON = 300


def parse_criteria(answer: str, acceptance: Sequence[str]) -> tuple[Criterion, ...]:
    """Return a reviewer's answers about the criteria, `[x] 1: reason`; of two the last counts.

    The number may stand before the box, or the words of the criterion in its place. A box that is
    neither ticked nor explained may be a copy of the list.
    """
    answers: dict[int, Criterion] = {}
    for before, box, text in (m.groups() for m in map(_BOX.fullmatch, answer.splitlines()) if m):
        words = next((words for words in acceptance if words and text.startswith(words)), "")
        after = None if words or before else _NUMBER.match(text)
        number = acceptance.index(words) + 1 if words else int(before or (after[1] if after else 0))
        reason = text.removeprefix(after[0] if after else words).strip(_AROUND)[:_LONGEST_REASON]
        if 0 < number <= len(acceptance) and (box != " " or reason):
            answers[number] = Criterion(number=number, met=box != " ", reason=reason)
    return tuple(answers[number] for number in sorted(answers))


class Ruling(NamedTuple):
    """What the reviews of a head decide."""

    #: The last verdict that counts.
    last: ReviewSnapshot | None
    #: How many people still have to approve.
    missing: int

    @property
    def decisive(self) -> ReviewSnapshot | None:
        """The last verdict; None while approvals are missing."""
        return None if self.missing else self.last


class ReviewPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Whose approvals a merge needs, and which verdicts count."""

    #: As many people have to approve; with 0, the approval of our reviewer is enough, too.
    people: int = 0
    #: Reviews with another verdict are remarks.
    verdicts: tuple[Verdict, ...] = ("approved", "changes_requested")

    def counts(self, sprint: Sprint, task: Task | None, review: ReviewSnapshot) -> bool:
        """True for a verdict of a trusted person, and for ours unless it was voided."""
        if review.verdict not in self.verdicts:
            return False
        if is_ours(sprint, review):
            return task is None or marker_key(review.body) not in task.review.voided
        return review.trusted

    def judge(
        self,
        sprint: Sprint,
        task: Task | None,
        reviews: Iterable[ReviewSnapshot],
        pull: int,
        head: str,
    ) -> Ruling:
        """Return what the reviews of a head decide; approvals by command are reviews, too."""
        by_command = task.review.approvals if task else ()
        counted = [
            review
            for review in (*reviews, *by_command)
            if (review.pull, review.head) == (pull, head) and self.counts(sprint, task, review)
        ]
        last = latest(sprint, counted)
        if last and last.verdict == "changes_requested":
            return Ruling(last, 0)
        by_author: dict[str, list[ReviewSnapshot]] = {}
        for review in counted:
            if not is_ours(sprint, review):
                by_author.setdefault(review.author, []).append(review)
        # The last verdict of each person counts.
        words = [latest(sprint, reviews) for reviews in by_author.values()]
        approving = sum(word is not None and word.verdict == "approved" for word in words)
        return Ruling(last, max(0, self.people - approving))


def policy_of(sprint: Sprint, task: Task | None) -> ReviewPolicy:
    """Return the policy for the change of a task; a task can only ask for more."""
    by_task = task is not None and task.plan.require_human_review
    return ReviewPolicy(people=int(sprint.settings.rules.require_human_review or by_task))


def last_word(evaluation: Evaluation, task: Task, pull: PullSnapshot) -> ReviewSnapshot | None:
    """Return the verdict that decides about the current head."""
    return _ruling(evaluation, task, pull).decisive


def _ruling(evaluation: Evaluation, task: Task, pull: PullSnapshot) -> Ruling:
    reviews, policy = evaluation.reviews_of(pull.number), policy_of(evaluation.sprint, task)
    return policy.judge(evaluation.sprint, task, reviews, pull.number, pull.head)


def _order(review: ReviewSnapshot) -> tuple[int, int]:
    return review.version, review.id


def latest(sprint: Sprint, reviews: Iterable[ReviewSnapshot]) -> ReviewSnapshot | None:
    """Return the last of these verdicts.

    Forges number comments and reviews separately. If a person requested changes within the same
    second as a verdict by comment, the order is unknown, and then the request counts.
    """
    ordered = sorted(reviews, key=_order)
    last = ordered[-1] if ordered else None
    if last is None or not last.is_comment:
        return last
    requests = [
        review
        for review in ordered
        if review.verdict == "changes_requested"
        and moment(review.version) == moment(last.version)
        and not is_ours(sprint, review)
    ]
    return requests[-1] if requests else last


def approved_head(evaluation: Evaluation, task: Task) -> str:
    """Return the head that may be merged: the last verdict is an approval, and none is missing."""
    ruling = _ruling_of_head(evaluation, task)
    approved = ruling and ruling.decisive and ruling.decisive.verdict == "approved"
    return task.change.head if approved else ""


def awaits_approval(evaluation: Evaluation, task: Task) -> bool:
    """True if the head was approved, and approvals of people are missing."""
    ruling = _ruling_of_head(evaluation, task)
    return ruling is not None and ruling.last is not None and ruling.missing > 0


def _ruling_of_head(evaluation: Evaluation, task: Task) -> Ruling | None:
    pull = evaluation.state.pull_of(task)
    if pull is None or pull.state != "open" or pull.head != task.change.head:
        return None
    return _ruling(evaluation, task, pull)


def take_back(evaluation: Evaluation, task: Task) -> None:
    """Void our own verdicts, also one that is not posted yet: the head is reviewed again."""
    ours = {
        marker_key(review.body)
        for review in evaluation.reviews_of(task.links.pull)
        if is_ours(evaluation.sprint, review)
    }
    task.review.voided = tuple(sorted({*task.review.voided, *ours, task.review.last_key} - {""}))
    task.review.posted_for = task.review.criteria_head = ""
    if task.merge.merging and not approved_head(evaluation, task):
        task.merge.merging = ""


def reason_of(review: ReviewSnapshot) -> str:
    """Return the first line of a review, for people."""
    first = next((line for line in review.body.splitlines() if line.strip()), "")
    return first.removeprefix("CHANGES_NEEDED:").strip() or "changes requested"


def details_of(review: ReviewSnapshot) -> str:
    """Return the whole text of a review, for the agent that has to act on it."""
    text = without_markers(review.body)
    return text.removeprefix("CHANGES_NEEDED:").strip() or "changes requested"


def send_back_or_escalate(
    evaluation: Evaluation,
    task: Task,
    head: str,
    reason: str,
    details: str = "",
    *,
    start: str = "",
    onto_main: bool = False,
) -> None:
    """Send a head back to its agent; after the last fix round, escalate.

    `reason` is the line that people read; the agent gets the details. The fix begins at that head,
    or at `start`.
    """
    if head not in task.review.rejected:
        task.review.rejected = (*task.review.rejected, head)
    verified = task.merge.verified_head(head)
    red = verified is not None and not verified.passes
    fix = evaluation.new_work(
        task,
        "fix",
        head=start or head,
        reason=details or reason,
        log=verified.log if verified else "",
        onto_main=red or onto_main,
    )
    rounds = evaluation.sprint.settings.rules.max_fix_rounds
    if len(task.review.rejected) > rounds:
        fixes = "1 fix round" if rounds == 1 else f"{rounds} fix rounds"
        reason = f"not approved after {fixes}: {reason}"
        evaluation.escalate(task, reason, fix, resume_as=Step.FIXING)
        return
    evaluation.move(task, Step.FIXING, reason)
    evaluation.start(task, fix)
