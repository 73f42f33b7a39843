"""Turns answers of a forge into snapshots, with versions that order them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from caloron.domain.model.snapshots import (
    PART_BITS,
    BranchSnapshot,
    CommentSnapshot,
    IssueSnapshot,
    PullSnapshot,
    ReviewSnapshot,
    Verdict,
    issues_closed_by,
    marker_key,
)
from caloron.forge.api import types

_HOUR_MS = 3_600_000
_REVIEW_KEY = re.compile(r"review/[0-9]+/([0-9a-f]{40,64})/\S+")
_VERDICTS: dict[str, Verdict] = {
    "APPROVED": "approved",
    "REQUEST_CHANGES": "changes_requested",
    "CHANGES_REQUESTED": "changes_requested",
}
#: Reviews that are not submitted, or that only ask for one.
_UNSUBMITTED = ("PENDING", "REQUEST_REVIEW", "")


def version(updated_s: int, began_ms: int) -> int:
    """A number that is higher for a later change, and for a later read of the same change.

    Forges report the time of a change in whole seconds only; the later of two reads within a
    second may have seen more.
    """
    part = began_ms - updated_s * 1000 + _HOUR_MS
    return updated_s << PART_BITS | min(max(part, 0), (1 << PART_BITS) - 1)


def seconds(moment: datetime) -> int:
    return int(moment.timestamp())


def login(user: types.User | None) -> str:
    """The account name; GitHub calls a removed account `ghost`."""
    return user.login if user and user.login else "ghost"


def issue_snapshot(issue: types.Issue, began_ms: int) -> IssueSnapshot:
    closed = issue.state == "closed"
    return IssueSnapshot(
        version=version(seconds(issue.updated_at), began_ms),
        number=issue.number,
        title=issue.title,
        body=text_of(issue.body),
        state="closed" if closed else "open",
        author=login(issue.user),
        labels=tuple(sorted({label.name for label in labels_of(issue)})),
        closed_by=issue.closed_by.login if closed and issue.closed_by else "",
    )


def labels_of(issue: types.Issue) -> list[types.Label]:
    """The labels of an issue; GitHub may send a name alone."""
    return [types.Label(label) if isinstance(label, str) else label for label in issue.labels or []]


def pull_snapshot(pull: types.Pull, branch: str, began_ms: int) -> PullSnapshot:
    body = text_of(pull.body)
    merged = is_merged(pull)
    return PullSnapshot(
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


def is_merged(pull: types.Pull) -> bool:
    return pull.merged or pull.merged_at is not None


def branch_of(pull: types.Pull, name: str, repo: str) -> str:
    """The branch `name` of this repository, or of a fork as `owner:name`."""
    there = pull.head.repo.full_name if pull.head.repo else ""
    if there.casefold() == repo.casefold():
        return name
    return f"{there.split('/')[0] or 'ghost'}:{name.rpartition(':')[2]}"


def is_submitted(review: types.Review) -> bool:
    return review.state not in _UNSUBMITTED


def verdict_of(review: types.Review) -> Verdict:
    """A dismissed review is a comment."""
    return "commented" if review.dismissed else _VERDICTS.get(review.state, "commented")


def review_snapshot(
    review: types.Review, pull: int, began_ms: int, *, trusted: bool, lines: str = ""
) -> ReviewSnapshot:
    at = review.updated_at or review.submitted_at
    return ReviewSnapshot(
        version=version(seconds(at) if at else 0, began_ms),
        id=review.id,
        pull=pull,
        head=review.commit_id or "",
        verdict=verdict_of(review),
        author=login(review.user),
        body="\n\n".join(filter(None, (text_of(review.body), lines))),
        trusted=trusted,
    )


def comment_snapshot(comment: types.Comment, began_ms: int, *, trusted: bool) -> CommentSnapshot:
    return CommentSnapshot(
        version=version(seconds(comment.updated_at), began_ms),
        id=comment.id,
        issue=number_of(comment),
        author=login(comment.user),
        body=text_of(comment.body),
        trusted=trusted,
        created_at=f"{comment.created_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
    )


def reviewed_head(comment: types.Comment, ours: tuple[str, ...]) -> str:
    """The commit that a comment of ours reviews; empty: it is an ordinary comment."""
    key = marker_key(text_of(comment.body)) if login(comment.user) in ours else ""
    match = _REVIEW_KEY.fullmatch(key)
    return match[1] if match else ""


def comment_review(comment: types.Comment, head: str, began_ms: int) -> ReviewSnapshot:
    """A verdict in a comment, because an account may not review its own change."""
    body = text_of(comment.body)
    summary = body.split("\n", 1)[0].strip()
    verdict: Verdict = "commented"
    if summary == "APPROVED":
        verdict = "approved"
    elif summary.startswith("CHANGES_NEEDED"):
        verdict = "changes_requested"
    return ReviewSnapshot(
        version=version(seconds(comment.updated_at), began_ms),
        # Below zero, where no review of the forge's own can be.
        id=-comment.id,
        pull=number_of(comment),
        head=head,
        verdict=verdict,
        author=login(comment.user),
        body=body,
    )


def number_of(comment: types.Comment) -> int:
    """The number of the issue or pull request of a comment."""
    tail = (comment.issue_url or comment.pull_request_url).rstrip("/").rpartition("/")[2]
    return int(tail) if tail.isdecimal() else 0


def branch_snapshot(name: str, commit: str, began_ms: int) -> BranchSnapshot:
    """A branch has no time of its own: the later read is the newer one."""
    return BranchSnapshot(version=version(began_ms // 1000, began_ms), name=name, commit=commit)


def text_of(body: str | None) -> str:
    """A body with plain line ends: web forms send CRLF."""
    return (body or "").replace("\r\n", "\n")
