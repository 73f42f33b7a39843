"""Looking at a forge on another machine: each question of the port, handed to who knows how."""

from __future__ import annotations

from collections.abc import Callable

from caloron.domain.observations import (
    BranchSeen,
    CommentSeen,
    IssueSeen,
    PullSeen,
    ReviewSeen,
)
from caloron.domain.sprint import BRANCHES
from caloron.errors import NotFound
from caloron.forge import answers
from caloron.forge.dialect import BranchRules, Dialect
from caloron.forge.http import Http
from caloron.forge.labels import Labels
from caloron.forge.local_input import require_commit
from caloron.forge.remote_merge import Merger
from caloron.forge.remote_poll import Watch
from caloron.forge.remote_read import Reader
from caloron.forge.texts import no_such, require_branch, require_number
from caloron.ports import About, Checks, Poll, Remote, State


class RemoteLooks:
    """The reads of the `Forge` port."""

    def __init__(
        self,
        reader: Reader,
        dialect: Dialect,
        web: str,
        git_remote: Callable[[], Remote],
        close: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._dialect = dialect
        self._http = reader.http
        self._web = f"{web}/{self._http.repo}"
        self._git_remote = git_remote
        self._close = close
        self._watch = Watch(reader)
        self._labels = Labels(self._http, dialect)
        self._merger = Merger(reader, dialect)

    def __repr__(self) -> str:
        return f"RemoteForge({self._web!r})"

    @property
    def author(self) -> str:
        return self._reader.author

    @property
    def reviewer(self) -> str:
        return self._reader.reviewer

    @property
    def main(self) -> str:
        return self._reader.repository.default_branch

    @property
    def http(self) -> Http:
        """For those who count requests."""
        return self._http

    def close(self) -> None:
        self._close()

    def remote(self) -> Remote:
        return self._git_remote()

    def url(self, number: int, *, pull: bool = False) -> str:
        return f"{self._web}/{self._dialect.pull_pages if pull else 'issues'}/{number}"

    def about(self) -> About:
        repository = self._reader.look_at_repository()
        rights = repository.permissions or answers.Rights()
        empty = repository.empty or self._reader.branch(repository.default_branch) is None
        rules = None if empty else self._dialect.protection(self._http, repository.default_branch)
        can_push = rights.push and not repository.archived
        branches = BranchRules()
        if can_push:
            main = repository.default_branch
            branches = self._dialect.branch_rules(self._http, main, BRANCHES, self.author)
        return About(
            kind=self._dialect.kind,
            # Its own idea of its address may be one that is not reached from here.
            url=self._web,
            description=repository.description or "",
            open_issues=repository.open_issues_count,
            empty=empty,
            can_push=can_push,
            can_merge=can_push and (rules is None or rules.can_merge),
            protected=rules is not None and rules.protected,
            required_checks=rules.required_checks if rules else (),
            required_approvals=rules.required_approvals if rules else 0,
            reviewer_can_push=self._reader.reviewer_can_push(),
            switched_off=_switched_off(repository),
            archived=repository.archived,
            closed_by=branches.closed,
            signed_by=branches.signed,
            outdated_by=branches.outdated,
            sees_rules=not branches.unseen,
            sees_check_runs=empty
            or self._dialect.sees_check_runs(self._http, repository.default_branch),
            reviews="review" if self._reader.review_http else "comment",
        )

    def poll(self, cursor: str) -> Poll:
        return self._watch.poll(cursor)

    def issue(self, number: int) -> IssueSeen:
        return self._reader.issue(number)

    def issues(self, state: State = "all", label: str = "") -> list[IssueSeen]:
        return self._reader.issues(state, label)

    def comments(self, number: int) -> list[CommentSeen]:
        return self._reader.comments(number)

    def pull(self, number: int) -> PullSeen:
        return self._reader.pull(number)

    def pulls(self, state: State = "all") -> list[PullSeen]:
        return self._reader.pulls(state)

    def reviews(self, number: int) -> list[ReviewSeen]:
        return self._reader.reviews(number)

    def branch(self, name: str) -> BranchSeen | None:
        return self._reader.branch(require_branch(name))

    def mergeable(self, number: int) -> bool:
        return self._merger.mergeable(number)

    def diff(self, number: int) -> str:
        try:
            return self._dialect.diff(self._http, require_number(number, "pull request"))
        except NotFound:
            raise no_such(number, "pull request") from None

    def checks(self, head: str) -> Checks:
        return self._reader.checks(require_commit(head))

    def find_issue(self, key: str) -> IssueSeen | None:
        return self._reader.find_issue(key)

    def find_comment(self, number: int, key: str) -> CommentSeen | None:
        return self._reader.find_comment(number, key)

    def find_pull(self, branch: str, key: str) -> PullSeen | None:
        return self._reader.find_pull(branch, key)

    def find_review(self, number: int, key: str) -> ReviewSeen | None:
        return self._reader.find_review(number, key)


def _switched_off(repository: answers.Repository) -> tuple[str, ...]:
    parts = {
        "issues": repository.has_issues and repository.external_tracker is None,
        "pull requests": repository.has_pull_requests,
    }
    return tuple(name for name, there in parts.items() if not there)
