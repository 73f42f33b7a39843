"""Reads of a forge on another machine: objects as snapshots, accounts, branches, checks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from caloron.domain.commands import mistaken_word, word_of
from caloron.domain.observations import (
    BranchSeen,
    CommentSeen,
    IssueSeen,
    PullSeen,
    ReviewSeen,
    marker_key,
)
from caloron.errors import ForgeUnavailable, NotFound
from caloron.forge import answers, seen
from caloron.forge.connection import Answer, Params
from caloron.forge.dialect import Check, Dialect, Protection
from caloron.forge.http import Http, Refused
from caloron.forge.paths import segment
from caloron.forge.people import People
from caloron.forge.texts import no_such, require_number
from caloron.ports import Checks, State
from caloron.store import log

T = TypeVar("T")

#: Ours are the newest ones of our own account; whatever is further back is of older sprints.
_FIND_PAGES = 20
#: Labels that the issue of a task has, or had: people may take one of them off.
_LABELS = "caloron:"
_PROTECTION_S = 60.0
#: A branch that is not main is asked about so often: main may have been renamed to it.
_NOT_MAIN_S = 60.0
_FORBIDDEN = 403
_GREEN = ("success", "skipped", "neutral", "warning")
_RED = ("failure", "error")


class Reader:
    """Asks one forge about one repository."""

    def __init__(
        self, http: Http, reviewer: Http | None, dialect: Dialect, people: tuple[str, ...]
    ) -> None:
        self.http = http
        self.dialect = dialect
        self._reviewer_http = reviewer
        self._once: dict[str, object] = {}
        self._once_lock = threading.RLock()
        self._protection: tuple[float, Protection] | None = None
        #: Branches that are not main, and when that was asked.
        self._not_main: dict[str, float] = {}
        self.people = People(http.repo.split("/")[0], people, self._may_write)

    @property
    def author(self) -> str:
        return self._ask_once("author", lambda: _login(self.http))

    @property
    def reviewer(self) -> str:
        http = self._reviewer_http
        return self._ask_once("reviewer", lambda: _login(http)) if http else self.author

    @property
    def ours(self) -> tuple[str, ...]:
        return (self.author, self.reviewer)

    @property
    def review_http(self) -> Http | None:
        """The second account, if there is one that differs from the first."""
        return self._reviewer_http if self.reviewer != self.author else None

    def reviewer_can_push(self) -> bool:
        """Whether the second account may write here; True where there is none."""
        if (second := self.review_http) is None:
            return True
        try:
            rights = second.get("").read(answers.Repository).permissions
        except (NotFound, Refused) as error:
            log.info("the second account cannot see the repository", error=error)
            return False
        return rights is not None and rights.push

    @property
    def repository(self) -> answers.Repository:
        """As it was at the first look, or at the last one for a main that was renamed."""
        return self._ask_once("repository", self.look_at_repository)

    def look_for_main(self) -> str:
        """The name of main, asked anew: people rename it."""
        found = self.look_at_repository()
        with self._once_lock:
            if found.default_branch != self.repository.default_branch:
                self._protection = None
                self._not_main.clear()
            self._once["repository"] = found
        return found.default_branch

    def is_for_main(self, pull: answers.Pull) -> bool:
        """Whether it is to be merged into main, or was; a person may have chosen another branch."""
        base = pull.base.ref
        if base == self.repository.default_branch:
            return True
        asked = self._not_main.get(base)
        if asked is not None and time.monotonic() - asked < _NOT_MAIN_S:
            return False
        if base == self.look_for_main():
            return True
        self._not_main[base] = time.monotonic()
        return False

    def look_at_repository(self) -> answers.Repository:
        return self.http.get("").read(answers.Repository)

    def _may_write(self, user: str) -> bool:
        try:
            asked = self.http.get(f"collaborators/{segment(user)}/permission")
        except NotFound:
            return False
        except Refused as refusal:
            if refusal.status != _FORBIDDEN:
                raise
            return self.dialect.known_to_write(self.http, user)
        return asked.read(answers.Permission).permission in self.dialect.writers

    def issue_json(self, number: int) -> tuple[answers.Issue, int]:
        answer = self._numbered(number, "issue", "issues/{}")
        issue = answer.read(answers.Issue)
        # One that was moved to another repository is answered from there, with its number there.
        if issue.pull_request is not None or issue.number != number:
            raise no_such(number, "issue")
        return issue, answer.began_ms

    def _numbered(self, number: int, what: str, path: str) -> Answer:
        try:
            return self.http.get(path.format(require_number(number, what)))
        except NotFound:
            raise no_such(number, what) from None

    def require(self, number: int) -> None:
        self._numbered(number, "issue or pull request", "issues/{}")

    def issue(self, number: int) -> IssueSeen:
        return self.issue_seen(*self.issue_json(number))

    def issue_seen(self, issue: answers.Issue, began_ms: int) -> IssueSeen:
        """Whoever opened an issue can change its text: for a task that must be somebody trusted."""
        found = seen.issue_seen(issue, began_ms)
        a_task = any(label.startswith(_LABELS) for label in found.labels)
        asked = self.people.trusted if a_task else self.people.known
        return msgspec.structs.replace(found, trusted=asked(found.author, self.ours))

    def issues(self, state: State, label: str = "") -> list[IssueSeen]:
        if state == "merged":
            return []
        params = {"state": state, **({"labels": label} if label else {}), **self.dialect.page}
        found = [
            self.issue_seen(issue, began)
            for issue, began in self._listed("issues", params, answers.Issue)
            if issue.pull_request is None
        ]
        # Gitea lists all for a label that the repository does not have.
        wanted = [issue for issue in found if not label or label in issue.labels]
        return sorted(wanted, key=lambda issue: issue.number)

    def comments(self, number: int) -> list[CommentSeen]:
        return [one for one in self._said_on(number) if isinstance(one, CommentSeen)]

    def _said_on(self, number: int) -> list[CommentSeen | ReviewSeen]:
        """The comments on an issue or a pull request, verdicts of ours among them."""
        path = f"issues/{require_number(number)}/comments"
        listed = self._listed(path, self.dialect.page, answers.Comment)
        try:
            return [self.comment_seen(comment, began) for comment, began in listed]
        except NotFound:
            raise no_such(number, "issue or pull request") from None
        except ForgeUnavailable:
            # Gitea has an internal error for the comments of nothing.
            self.require(number)
            raise

    def comment_seen(self, comment: answers.Comment, began_ms: int) -> CommentSeen | ReviewSeen:
        if head := seen.reviewed_head(comment, self.ours):
            return seen.comment_review(comment, head, began_ms)
        author = seen.login(comment.user)
        body = seen.text_of(comment.body)
        # Only what may be a command, or was meant as one, is worth a question.
        spoken = word_of(body) or mistaken_word(body)
        asked = self.people.trusted if spoken else self.people.known
        return seen.comment_seen(comment, began_ms, trusted=asked(author, self.ours))

    def pull_json(self, number: int) -> tuple[answers.Pull, int]:
        answer = self._numbered(number, "pull request", "pulls/{}")
        return answer.read(answers.Pull), answer.began_ms

    def pull(self, number: int) -> PullSeen:
        return self.pull_seen(*self.pull_json(number))

    def pull_seen(self, pull: answers.Pull, began_ms: int) -> PullSeen:
        branch = seen.branch_of(pull, self.dialect.head_name(pull), self.http.repo)
        found = seen.pull_seen(pull, branch, began_ms)
        if not self.is_for_main(pull):
            # Whatever becomes of it there, main does not get it: here it has ended.
            found = msgspec.structs.replace(found, state="closed", merge_commit="")
        # One that closes an issue can become the change of a task.
        asked = self.people.trusted if found.closes else self.people.known
        return msgspec.structs.replace(found, trusted=asked(found.author, self.ours))

    def pulls(self, state: State) -> list[PullSeen]:
        params = {"state": "closed" if state == "merged" else state, **self.dialect.page}
        found = [
            self.pull_seen(pull, began)
            for pull, began in self._listed("pulls", params, answers.Pull)
            if self.is_for_main(pull)
        ]
        wanted = [pull for pull in found if state in ("all", pull.state)]
        return sorted(wanted, key=lambda pull: pull.number)

    def reviews(self, number: int) -> list[ReviewSeen]:
        try:
            real = self.real_reviews(require_number(number, "pull request"))
        except NotFound:
            raise no_such(number, "pull request") from None
        said = [one for one in self._said_on(number) if isinstance(one, ReviewSeen)]
        return sorted((*real, *said), key=lambda r: (r.version, abs(r.id)))

    def real_reviews(self, number: int) -> list[ReviewSeen]:
        """The reviews that were submitted as such."""
        path = f"pulls/{number}/reviews"
        listed = self._listed(path, self.dialect.page, answers.Review)
        return [
            self._review_seen(review, number, began)
            for review, began in listed
            if seen.is_said(review)
        ]

    def _review_seen(self, review: answers.Review, number: int, began_ms: int) -> ReviewSeen:
        author, verdict = seen.login(review.user), seen.verdict_of(review)
        asked = self.people.known if verdict == "commented" else self.people.trusted
        trusted = asked(author, self.ours)
        lines = ""
        if verdict == "changes_requested" and trusted and author not in self.ours:
            lines = self._lines_of(review, number)
        return seen.review_seen(review, number, began_ms, trusted=trusted, lines=lines)

    def _lines_of(self, review: answers.Review, number: int) -> str:
        """What a person wrote at lines of the change: often the only thing they wrote."""
        if review.comments_count == 0:
            return ""
        key = f"lines/{review.id}/{review.updated_at or review.submitted_at}"
        return self._ask_once(key, lambda: self._read_lines(review.id, number))

    def _read_lines(self, review: int, number: int) -> str:
        path = f"pulls/{number}/reviews/{review}/comments"
        listed = self._listed(path, self.dialect.page, answers.LineComment)
        return "\n".join(
            f"`{one.path}:{one.line or one.original_line or one.position or ''}` {one.body}"
            for one, _ in listed
        )

    def branch(self, name: str) -> BranchSeen | None:
        try:
            answer = self.http.get(f"branches/{segment(name)}")
        except NotFound:
            # A repository that is gone has no branch either, and that is another matter.
            self.look_at_repository()
            return None
        commit = answer.read(answers.Branch).commit
        return seen.branch_seen(name, commit.id or commit.sha, answer.began_ms)

    def protection(self) -> Protection:
        with self._once_lock:
            held = self._protection
            if held is None or time.monotonic() - held[0] > _PROTECTION_S:
                found = self.dialect.protection(self.http, self.repository.default_branch)
                held = self._protection = (time.monotonic(), found)
            return held[1]

    def checks(self, head: str) -> Checks:
        """Green only if everything that is there or required is."""
        found = self.dialect.statuses(self.http, head)
        states = {one.name: one for one in found if not one.name.startswith("caloron/")}
        for wanted in self.protection().required_checks:
            if wanted.startswith("caloron/"):
                continue
            if not any(self.dialect.is_required(name, wanted) for name in states):
                states[wanted] = Check(wanted, "pending")
        if not states:
            return Checks(state="none")
        red = [one for one in states.values() if one.state in _RED]
        open_ = [one for one in states.values() if one.state not in (*_RED, *_GREEN)]
        detail = ", ".join(f"{one.name}: {one.state}" for one in (*red, *open_))
        return Checks(state="red" if red else "pending" if open_ else "green", detail=detail)

    def find_issue(self, key: str) -> IssueSeen | None:
        params = {"state": "all", **self.dialect.created_by(self.author), **self.dialect.page}
        for issue, began in self._listed("issues", params, answers.Issue, most=_FIND_PAGES):
            ours = issue.pull_request is None and seen.login(issue.user) == self.author
            if ours and key and marker_key(issue.body or "") == key:
                return self.issue_seen(issue, began)
        return None

    def find_comment(self, number: int, key: str) -> CommentSeen | None:
        for one in self.comments(number):
            if key and one.author == self.author and marker_key(one.body) == key:
                return one
        return None

    def find_pull(self, branch: str, key: str) -> PullSeen | None:
        owner = self.http.repo.split("/")[0]
        narrow = self.dialect.pulls_from(owner, branch, self.author)
        params = {"state": "all", **narrow, **self.dialect.page}
        for json, began in self._listed("pulls", params, answers.Pull, most=_FIND_PAGES):
            pull = self.pull_seen(json, began)
            ours = pull.branch == branch and pull.author == self.author
            if ours and key and marker_key(pull.body) == key:
                return pull
        return None

    def find_review(self, number: int, key: str) -> ReviewSeen | None:
        for one in self.reviews(number):
            if key and one.author in self.ours and marker_key(one.body) == key:
                return one
        return None

    def heads(self) -> tuple[dict[str, str], int]:
        """All branches and their commits; none in a repository without a commit."""
        try:
            answer = self.http.get(self.dialect.heads, polled=True)
        except NotFound:
            return {}, 0
        except Refused as refusal:
            if refusal.status != 409:
                raise
            return {}, 0
        listed = answer.read(list[answers.Ref])
        heads = "refs/heads/"
        found = {r.ref[len(heads) :]: r.object.sha for r in listed if r.ref.startswith(heads)}
        return found, answer.began_ms

    def _listed(
        self, path: str, params: Params, what: type[T], *, most: int = 1000
    ) -> Iterator[tuple[T, int]]:
        for answer, page in self.http.pages(path, params, what, most=most):
            for one in page:
                yield one, answer.began_ms

    def _ask_once(self, name: str, ask: Callable[[], T]) -> T:
        with self._once_lock:
            if name not in self._once:
                self._once[name] = ask()
            return self._once[name]  # type: ignore[return-value]


def _login(http: Http) -> str:
    return http.get("/user").read(answers.User).login
