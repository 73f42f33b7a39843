"""Turns what a forge answered into snapshots, with versions that order them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from caloron.domain.observations import (
    PART_BITS,
    BranchSeen,
    CommentSeen,
    IssueSeen,
    PullSeen,
    ReviewSeen,
    Verdict,
    issues_closed_by,
    marker_key,
)
from caloron.forge import answers

_HOUR_MS = 3_600_000
_REVIEW_KEY = re.compile(r"review/[0-9]+/([0-9a-f]{40,64})/\S+")
_VERDICTS: dict[str, Verdict] = {
    "APPROVED": "approved",
    "REQUEST_CHANGES": "changes_requested",
    "CHANGES_REQUESTED": "changes_requested",
}
#: Reviews that nobody has submitted, or that only ask for one.
_UNSAID = ("PENDING", "REQUEST_REVIEW", "")


def version(updated_s: int, began_ms: int) -> int:
    """A later change is higher, and of one change the later look.

    Forges tell the time of a change in whole seconds only; of two looks within one the later
    may have seen more.
    """
    part = began_ms - updated_s * 1000 + _HOUR_MS
    return updated_s << PART_BITS | min(max(part, 0), (1 << PART_BITS) - 1)


def seconds(moment: datetime) -> int:
    return int(moment.timestamp())


def login(user: answers.User | None) -> str:
    """Who it was; an account that was removed is GitHub's `ghost`."""
    return user.login if user and user.login else "ghost"


def issue_seen(issue: answers.Issue, began_ms: int) -> IssueSeen:
    closed = issue.state == "closed"
    return IssueSeen(
        version=version(seconds(issue.updated_at), began_ms),
        number=issue.number,
        title=issue.title,
        body=text_of(issue.body),
        state="closed" if closed else "open",
        author=login(issue.user),
        labels=tuple(sorted({label.name for label in labels_of(issue)})),
        closed_by=issue.closed_by.login if closed and issue.closed_by else "",
    )


def labels_of(issue: answers.Issue) -> list[answers.Label]:
    """Its labels; GitHub may give a name alone."""
    return [answers.Label(one) if isinstance(one, str) else one for one in issue.labels or []]


def pull_seen(pull: answers.Pull, branch: str, began_ms: int) -> PullSeen:
    body = text_of(pull.body)
    merged = is_merged(pull)
    return PullSeen(
        version=version(seconds(pull.updated_at), began_ms),
        number=pull.number,
        title=pull.title,
        body=body,
        state="merged" if merged else "open" if pull.state == "open" else "closed",
        author=login(pull.user),
        branch=branch,
        head=pull.head.sha,
        closes=issues_closed_by(body),
        base=pull.base.ref,
        ended_by=pull.merged_by.login if merged and pull.merged_by else "",
        # While it is open, this is GitHub's own trial merge.
        merge_commit=(pull.merge_commit_sha or "") if merged else "",
    )


def is_merged(pull: answers.Pull) -> bool:
    return pull.merged or pull.merged_at is not None


def branch_of(pull: answers.Pull, name: str, repo: str) -> str:
    """The branch `name` of this repository, or of a fork as `owner:name`."""
    there = pull.head.repo.full_name if pull.head.repo else ""
    if there.casefold() == repo.casefold():
        return name
    return f"{there.split('/')[0] or 'ghost'}:{name.rpartition(':')[2]}"


def is_said(review: answers.Review) -> bool:
    return review.state not in _UNSAID


def verdict_of(review: answers.Review) -> Verdict:
    """A dismissed review is a comment."""
    return "commented" if review.dismissed else _VERDICTS.get(review.state, "commented")


def review_seen(
    review: answers.Review, pull: int, began_ms: int, *, trusted: bool, lines: str = ""
) -> ReviewSeen:
    at = review.updated_at or review.submitted_at
    return ReviewSeen(
        version=version(seconds(at) if at else 0, began_ms),
        id=review.id,
        pull=pull,
        head=review.commit_id or "",
        verdict=verdict_of(review),
        author=login(review.user),
        body="\n\n".join(filter(None, (text_of(review.body), lines))),
        trusted=trusted,
    )


def comment_seen(comment: answers.Comment, began_ms: int, *, trusted: bool) -> CommentSeen:
    return CommentSeen(
        version=version(seconds(comment.updated_at), began_ms),
        id=comment.id,
        issue=number_of(comment),
        author=login(comment.user),
        body=text_of(comment.body),
        trusted=trusted,
        created_at=f"{comment.created_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
    )


def reviewed_head(comment: answers.Comment, ours: tuple[str, ...]) -> str:
    """The commit that a comment of ours is the verdict on; empty: it is an ordinary comment."""
    key = marker_key(text_of(comment.body)) if login(comment.user) in ours else ""
    found = _REVIEW_KEY.fullmatch(key)
    return found[1] if found else ""


def comment_review(comment: answers.Comment, head: str, began_ms: int) -> ReviewSeen:
    """A verdict that was told as a comment, because one may not review one's own change."""
    body = text_of(comment.body)
    word = body.split("\n", 1)[0].strip()
    verdict: Verdict = "commented"
    if word == "APPROVED":
        verdict = "approved"
    elif word.startswith("CHANGES_NEEDED"):
        verdict = "changes_requested"
    return ReviewSeen(
        version=version(seconds(comment.updated_at), began_ms),
        # Below zero, where no review of the forge's own can be.
        id=-comment.id,
        pull=number_of(comment),
        head=head,
        verdict=verdict,
        author=login(comment.user),
        body=body,
    )


def number_of(comment: answers.Comment) -> int:
    """The issue or pull request that a comment stands on."""
    tail = (comment.issue_url or comment.pull_request_url).rstrip("/").rpartition("/")[2]
    return int(tail) if tail.isdecimal() else 0


def branch_seen(name: str, commit: str, began_ms: int) -> BranchSeen:
    """A branch has no time of its own: the later look is the newer one."""
    return BranchSeen(version=version(began_ms // 1000, began_ms), name=name, commit=commit)


def text_of(body: str | None) -> str:
    """Bodies that were typed into a web page have the line ends of one."""
    return (body or "").replace("\r\n", "\n")
