"""What was said about the head of a pull request, and which word counts."""

from __future__ import annotations

from collections.abc import Iterable

from caloron.domain.observations import (
    PullSeen,
    ReviewSeen,
    marker_key,
    moment,
    without_markers,
)
from caloron.domain.ours import is_ours
from caloron.domain.sprint import Sprint, Task, pull_of
from caloron.domain.turn import Turn


def last_word(turn: Turn, task: Task, pull: PullSeen) -> ReviewSeen | None:
    """The last word on the current head by somebody who has a say."""
    return last_said(turn.sprint, task, turn.reviews_of(pull.number), pull.number, pull.head)


def last_said(
    sprint: Sprint, task: Task | None, reviews: Iterable[ReviewSeen], pull: int, head: str
) -> ReviewSeen | None:
    """The last word on one head of a pull request, of these reviews and the task's approval."""
    said = [*reviews, *([task.approval] if task and task.approval else [])]
    found = [
        seen
        for seen in said
        if (seen.pull, seen.head) == (pull, head)
        and seen.verdict != "commented"
        and _counts(sprint, task, seen)
    ]
    return latest(sprint, found)


def latest(sprint: Sprint, said: Iterable[ReviewSeen]) -> ReviewSeen | None:
    """The last of these words.

    Comments and reviews are looked at one after the other: which of a person's request and a
    verdict by comment, ours or a person's, came first within a second is not known, and then the
    request counts.
    """
    said = sorted(said, key=lambda r: (r.version, r.id))
    last = said[-1] if said else None
    if last is None or not last.is_comment:
        return last
    objections = [
        word
        for word in said
        if word.verdict == "changes_requested"
        and moment(word.version) == moment(last.version)
        and not is_ours(sprint, word)
    ]
    return objections[-1] if objections else last


def _counts(sprint: Sprint, task: Task | None, review: ReviewSeen) -> bool:
    if is_ours(sprint, review):
        return task is None or marker_key(review.body) not in task.void
    return review.trusted


def by_person(turn: Turn, review: ReviewSeen, verdict: str) -> bool:
    return review.verdict == verdict and not is_ours(turn.sprint, review)


def approved_head(turn: Turn, task: Task) -> str:
    """The head that may be merged, if the last word on it is an approval."""
    pull = pull_of(turn.state, task)
    if pull is None or pull.state != "open" or pull.head != task.head:
        return ""
    word = last_word(turn, task, pull)
    return pull.head if word and word.verdict == "approved" else ""


def take_back(turn: Turn, task: Task) -> None:
    """Our own verdicts do not count any more, also one that is on its way: review again."""
    ours = {
        marker_key(review.body)
        for review in turn.reviews_of(task.pull or 0)
        if is_ours(turn.sprint, review)
    }
    task.void = tuple(sorted({*task.void, *ours, task.verdict_key} - {""}))
    task.judged = ""
    if task.merging and not approved_head(turn, task):
        task.merging = ""


def reason_of(review: ReviewSeen) -> str:
    first = next((line for line in review.body.splitlines() if line.strip()), "")
    return first.removeprefix("CHANGES_NEEDED:").strip() or "changes requested"


def details_of(review: ReviewSeen) -> str:
    """Everything the reviewer wrote, for the agent that has to act on it."""
    text = without_markers(review.body)
    return text.removeprefix("CHANGES_NEEDED:").strip() or "changes requested"
