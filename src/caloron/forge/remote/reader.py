"""Reads a forge on another machine: objects as snapshots, accounts, branches, checks."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from caloron.domain.model.snapshots import (
    BranchSnapshot,
    CommentSnapshot,
    IssueSnapshot,
    PullSnapshot,
    ReviewSnapshot,
    marker_key,
)
from caloron.errors import ForgeUnavailable, NotFound
from caloron.forge.api import types
from caloron.forge.api.base import Check, ForgeApi, Protection, segment
from caloron.forge.http import Forbidden, ForgeHttp, ForgeResponse, Refused
from caloron.forge.remote import snapshots
from caloron.forge.validate import (
    no_such,
    require_commit,
    require_number,
    require_remote_branch,
)
from caloron.http import Params
from caloron.ports import Checks, State
from caloron.store import log

T = TypeVar("T")
Marked = TypeVar("Marked", IssueSnapshot, CommentSnapshot, PullSnapshot, ReviewSnapshot)

#: What we look for is among the newest objects of our account; older pages are of older sprints.
_FIND_PAGES = 20
#: The prefix of the labels that the issue of a task has, or had: people may remove one.
_LABELS = "caloron:"
_PROTECTION_S = 60.0
_TRUST_S = 300.0
#: Another branch is checked so often: main may have been renamed to it.
_NOT_MAIN_S = 60.0
_GREEN = ("success", "skipped", "neutral", "warning")
_RED = ("failure", "error")


class Reader:
    """The read half of a forge on another machine: one repository, seen by our accounts."""

    def __init__(
        self, http: ForgeHttp, reviewer: ForgeHttp | None, api: ForgeApi, people: tuple[str, ...]
    ) -> None:
        self.http = http
        self.api = api
        self._reviewer_http = reviewer
        #: Answers of the forge, and until when they are used; those under `main/` are about main.
        self._memory: dict[str, tuple[float, object]] = {}
        self._lock = threading.RLock()
        self._owner = http.repo.split("/")[0].casefold()
        #: Where people are listed, they are the only ones that may command, besides the owner.
        self._people = frozenset(name.casefold() for name in people)

    @property
    def author(self) -> str:
        return self._remembered("author", lambda: _login(self.http))

    @property
    def reviewer(self) -> str:
        http = self._reviewer_http
        return self._remembered("reviewer", lambda: _login(http)) if http else self.author

    @property
    def ours(self) -> tuple[str, ...]:
        return (self.author, self.reviewer)

    @property
    def review_http(self) -> ForgeHttp | None:
        """The second account, if there is one that differs from the first."""
        return self._reviewer_http if self.reviewer != self.author else None

    def reviewer_can_push(self) -> bool:
        """True if the second account may write here, or there is none."""
        if (second := self.review_http) is None:
            return True
        try:
            rights = second.get("").read(types.Repository).permissions
        except (NotFound, Refused) as error:
            log.info("the second account cannot see the repository", error=error)
            return False
        return rights is not None and rights.push

    @property
    def repository(self) -> types.Repository:
        """The repository as first read, or as read again after main was renamed."""
        return self._remembered("repository", self.fetch_repository)

    @property
    def main(self) -> str:
        return self.repository.default_branch

    def refresh_main(self) -> str:
        """Read the name of main again: people rename it."""
        repository = self.fetch_repository()
        with self._lock:
            if repository.default_branch != self.main:
                kept = {k: v for k, v in self._memory.items() if not k.startswith("main/")}
                self._memory = kept
            self._memory["repository"] = (math.inf, repository)
        return repository.default_branch

    def is_for_main(self, pull: types.Pull) -> bool:
        """True if a pull request is for main; a person may have chosen another branch."""
        base = pull.base.ref
        return base == self.main or self._remembered(
            f"main/is {base}", lambda: base == self.refresh_main(), _NOT_MAIN_S
        )

    def fetch_repository(self) -> types.Repository:
        return self.http.get("").read(types.Repository)

    def _may_write(self, user: str) -> bool:
        try:
            asked = self.http.get(f"collaborators/{segment(user)}/permission")
        except NotFound:
            return False
        except Forbidden:
            return self.api.known_to_write(self.http, user)
        return asked.read(types.Permission).permission in self.api.writers

    def issue_json(self, number: int) -> tuple[types.Issue, int]:
        response = self._numbered(number, "issue", "issues/{}")
        issue = response.read(types.Issue)
        # GitHub answers for an issue that was moved with the issue in its new repository.
        if issue.pull_request is not None or issue.number != number:
            raise no_such(number, "issue")
        return issue, response.began_ms

    def _numbered(self, number: int, kind: str, path: str) -> ForgeResponse:
        try:
            return self.http.get(path.format(require_number(number, kind)))
        except NotFound:
            raise no_such(number, kind) from None

    def require(self, number: int) -> None:
        self._numbered(number, "issue or pull request", "issues/{}")

    def issue(self, number: int) -> IssueSnapshot:
        return self.issue_snapshot(*self.issue_json(number))

    def issue_snapshot(self, issue: types.Issue, began_ms: int) -> IssueSnapshot:
        """The author can change the text at any time, so that a task needs a trusted author."""
        snapshot = snapshots.issue_snapshot(issue, began_ms)
        is_task = any(label.startswith(_LABELS) for label in snapshot.labels)
        trusted = self._is_trusted(snapshot.author, ask=is_task)
        return msgspec.structs.replace(snapshot, trusted=trusted)

    def issues(self, state: State = "all", label: str = "") -> list[IssueSnapshot]:
        if state == "merged":
            return []
        params = {"state": state, **({"labels": label} if label else {}), **self.api.page}
        issues = [
            self.issue_snapshot(issue, began)
            for issue, began in self._listed("issues", params, types.Issue)
            if issue.pull_request is None
        ]
        # Gitea lists all for a label that the repository does not have.
        wanted = [issue for issue in issues if not label or label in issue.labels]
        return sorted(wanted, key=lambda issue: issue.number)

    def comments(self, number: int) -> list[CommentSnapshot]:
        return [item for item in self._remarks(number) if isinstance(item, CommentSnapshot)]

    def _remarks(self, number: int) -> list[CommentSnapshot | ReviewSnapshot]:
        """The comments on an issue or a pull request, verdicts of ours among them."""
        path = f"issues/{require_number(number)}/comments"
        listed = self._listed(path, self.api.page, types.Comment)
        try:
            return [self.comment_snapshot(comment, began) for comment, began in listed]
        except NotFound:
            raise no_such(number, "issue or pull request") from None
        except ForgeUnavailable:
            # Gitea has an internal error for the comments of nothing.
            self.require(number)
            raise

    def comment_snapshot(
        self, comment: types.Comment, began_ms: int
    ) -> CommentSnapshot | ReviewSnapshot:
        if head := snapshots.reviewed_head(comment, self.ours):
            return snapshots.comment_review(comment, head, began_ms)
        author = snapshots.login(comment.user)
        body = snapshots.text_of(comment.body)
        # A comment with a marker is neither obeyed nor read, so it is worth no request.
        trusted = self._is_trusted(author, ask=not marker_key(body))
        return snapshots.comment_snapshot(comment, began_ms, trusted=trusted)

    def _is_trusted(self, author: str, *, ask: bool) -> bool:
        """True if an account may command; without `ask`, as far as known without a request."""
        name = author.casefold()
        if author in self.ours or name == self._owner or name in self._people:
            return True
        if self._people or not ask:
            return False
        return self._remembered(f"may write/{name}", lambda: self._may_write(author), _TRUST_S)

    def pull_json(self, number: int) -> tuple[types.Pull, int]:
        response = self._numbered(number, "pull request", "pulls/{}")
        return response.read(types.Pull), response.began_ms

    def pull(self, number: int) -> PullSnapshot:
        return self.pull_snapshot(*self.pull_json(number))

    def pull_snapshot(self, pull: types.Pull, began_ms: int) -> PullSnapshot:
        branch = snapshots.branch_of(pull, self.api.head_name(pull), self.http.repo)
        snapshot = snapshots.pull_snapshot(pull, branch, began_ms)
        if not self.is_for_main(pull):
            # Main never gets a change for another branch: here it has ended.
            snapshot = msgspec.structs.replace(snapshot, state="closed", merge_commit="")
        # A pull request that closes an issue can become the change of a task.
        trusted = self._is_trusted(snapshot.author, ask=bool(snapshot.closes))
        return msgspec.structs.replace(snapshot, trusted=trusted)

    def pulls(self, state: State = "all") -> list[PullSnapshot]:
        params = {"state": "closed" if state == "merged" else state, **self.api.page}
        for_main = [
            self.pull_snapshot(pull, began)
            for pull, began in self._listed("pulls", params, types.Pull)
            if self.is_for_main(pull)
        ]
        wanted = [pull for pull in for_main if state in ("all", pull.state)]
        return sorted(wanted, key=lambda pull: pull.number)

    def reviews(self, number: int) -> list[ReviewSnapshot]:
        try:
            real = self.real_reviews(require_number(number, "pull request"))
        except NotFound:
            raise no_such(number, "pull request") from None
        as_comments = [item for item in self._remarks(number) if isinstance(item, ReviewSnapshot)]
        return sorted((*real, *as_comments), key=lambda r: (r.version, abs(r.id)))

    def real_reviews(self, number: int) -> list[ReviewSnapshot]:
        """The reviews that were submitted as such."""
        path = f"pulls/{number}/reviews"
        listed = self._listed(path, self.api.page, types.Review)
        return [
            self._review_snapshot(review, number, began)
            for review, began in listed
            if snapshots.is_submitted(review)
        ]

    def _review_snapshot(self, review: types.Review, number: int, began_ms: int) -> ReviewSnapshot:
        author, verdict = snapshots.login(review.user), snapshots.verdict_of(review)
        trusted = self._is_trusted(author, ask=True)
        lines = ""
        if verdict != "approved" and trusted and author not in self.ours:
            lines = self._lines_of(review, number)
        return snapshots.review_snapshot(review, number, began_ms, trusted=trusted, lines=lines)

    def _lines_of(self, review: types.Review, number: int) -> str:
        """The comments of a review on single lines: often a person writes nothing else."""
        if review.comments_count == 0:
            return ""
        key = f"lines/{review.id}/{review.updated_at or review.submitted_at}"
        return self._remembered(key, lambda: self._read_lines(review.id, number))

    def _read_lines(self, review: int, number: int) -> str:
        path = f"pulls/{number}/reviews/{review}/comments"
        listed = self._listed(path, self.api.page, types.LineComment)
        return "\n".join(
            f"`{note.path}:{note.line or note.original_line or note.position or ''}` {note.body}"
            for note, _ in listed
        )

    def branch(self, name: str) -> BranchSnapshot | None:
        try:
            response = self.http.get(f"branches/{segment(require_remote_branch(name))}")
        except NotFound:
            # A repository that is gone has no branch either: that raises here.
            self.fetch_repository()
            return None
        commit = response.read(types.Branch).commit
        return snapshots.branch_snapshot(name, commit.id or commit.sha, response.began_ms)

    def protection(self) -> Protection:
        return self._remembered(
            "main/protection", lambda: self.api.protection(self.http, self.main), _PROTECTION_S
        )

    def checks(self, head: str) -> Checks:
        """Green only if every check that exists or is required is green."""
        listed = self.api.statuses(self.http, require_commit(head))
        states = {check.name: check for check in listed if not check.name.startswith("caloron/")}
        for wanted in self.protection().required_checks:
            if wanted.startswith("caloron/"):
                continue
            if not any(self.api.is_required(name, wanted) for name in states):
                states[wanted] = Check(wanted, "pending")
        if not states:
            return Checks(state="none")
        red = [check for check in states.values() if check.state in _RED]
        pending = [check for check in states.values() if check.state not in (*_RED, *_GREEN)]
        detail = ", ".join(f"{check.name}: {check.state}" for check in (*red, *pending))
        return Checks(state="red" if red else "pending" if pending else "green", detail=detail)

    def find_issue(self, key: str) -> IssueSnapshot | None:
        params = {"state": "all", **self.api.created_by(self.author), **self.api.page}
        listed = self._listed("issues", params, types.Issue, most=_FIND_PAGES)
        return _with_marker(
            key,
            (
                self.issue_snapshot(issue, began)
                for issue, began in listed
                if issue.pull_request is None and snapshots.login(issue.user) == self.author
            ),
        )

    def find_comment(self, number: int, key: str) -> CommentSnapshot | None:
        return _with_marker(key, (c for c in self.comments(number) if c.author == self.author))

    def find_pull(self, branch: str, key: str) -> PullSnapshot | None:
        owner = self.http.repo.split("/")[0]
        narrow = self.api.pulls_from(owner, branch, self.author)
        params = {"state": "all", **narrow, **self.api.page}
        listed = self._listed("pulls", params, types.Pull, most=_FIND_PAGES)
        pulls = (self.pull_snapshot(pull, began) for pull, began in listed)
        ours = (p for p in pulls if p.branch == branch and p.author == self.author)
        return _with_marker(key, ours)

    def find_review(self, number: int, key: str) -> ReviewSnapshot | None:
        return _with_marker(key, (r for r in self.reviews(number) if r.author in self.ours))

    def heads(self) -> tuple[dict[str, str], int]:
        """All branches and their commits; none in a repository without a commit."""
        try:
            response = self.http.get(self.api.heads, polled=True)
        except NotFound:
            return {}, 0
        except Refused as refusal:
            if refusal.status != 409:
                raise
            return {}, 0
        listed = response.read(list[types.Ref])
        heads = "refs/heads/"
        commits = {r.ref[len(heads) :]: r.object.sha for r in listed if r.ref.startswith(heads)}
        return commits, response.began_ms

    def _listed(
        self, path: str, params: Params, kind: type[T], *, most: int = 1000
    ) -> Iterator[tuple[T, int]]:
        for response, page in self.http.pages(path, params, kind, most=most):
            for item in page:
                yield item, response.began_ms

    def _remembered(self, key: str, ask: Callable[[], T], seconds: float = math.inf) -> T:
        """Ask the forge once in so many seconds; an error is not remembered."""
        known = self._memory.get(key)
        if known is None or time.monotonic() >= known[0]:
            with self._lock:
                known = self._memory.get(key)
                if known is None or time.monotonic() >= known[0]:
                    known = self._memory[key] = (time.monotonic() + seconds, ask())
        return known[1]  # type: ignore[return-value]


def _with_marker(key: str, objects: Iterable[Marked]) -> Marked | None:
    return next((o for o in objects if key and marker_key(o.body) == key), None)


def _login(http: ForgeHttp) -> str:
    return http.get("/user").read(types.User).login
