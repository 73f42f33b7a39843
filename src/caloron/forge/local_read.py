"""Looking at the forge on one's own disk: what is there, and what is new."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from caloron.domain.observations import (
    BranchSeen,
    CommentSeen,
    IssueSeen,
    PullSeen,
    ReviewSeen,
)
from caloron.errors import MergeConflict, PreconditionFailed, UsageError
from caloron.forge.local_git import CALORON, MAIN, BareRepository
from caloron.forge.local_input import require_branch
from caloron.forge.local_records import (
    Records,
    comment_seen,
    issue_seen,
    pull_seen,
    review_seen,
)
from caloron.forge.local_watch import RefWatch
from caloron.ports import About, Checks, Poll, Remote, State


class LocalReader:
    """The reads of the `Forge` port; each looks at the refs of git first."""

    author = reviewer = "caloron"
    main = MAIN

    def __init__(
        self,
        directory: Path,
        *,
        actor: str = "caloron",
        identity: tuple[str, str] = CALORON,
    ) -> None:
        repository, records = directory / "forge.git", directory / "forge.sqlite"
        if not (repository.is_dir() and records.is_file()):
            raise PreconditionFailed(
                f"there is no complete forge in {directory}",
                hint="`caloron init` makes one, and finishes one that it was stopped at;"
                " a project of an older Caloron gets one with its first `caloron sprint`",
            )
        self.actor = actor
        self._repository = BareRepository(repository.resolve(), identity)
        self._records = Records(records)
        self._watch = RefWatch(self._repository, self._records, self.author)

    def close(self) -> None:
        self._records.close()

    def remote(self) -> Remote:
        return Remote(str(self._repository.path))

    def about(self) -> About:
        return About(kind="local", url=str(self._repository.path))

    def url(self, number: int, *, pull: bool = False) -> str:
        return ""

    def poll(self, cursor: str) -> Poll:
        since = _since(cursor)
        version = self._watch.notice()
        if version <= since:
            return Poll((), str(since))
        return Poll(self._records.changed(since, version), str(version))

    def issue(self, number: int) -> IssueSeen:
        self._watch.notice()
        return self._records.issue(number)

    def issues(self, state: State = "all", label: str = "") -> list[IssueSeen]:
        self._watch.notice()
        found = [issue_seen(row) for row in self._records.rows("issues", state=state)]
        return [issue for issue in found if not label or label in issue.labels]

    def comments(self, number: int) -> list[CommentSeen]:
        self._records.require(number)
        return [comment_seen(row) for row in self._records.rows("comments", number=number)]

    def pull(self, number: int) -> PullSeen:
        self._watch.notice()
        return self._records.pull(number)

    def pulls(self, state: State = "all") -> list[PullSeen]:
        self._watch.notice()
        return [pull_seen(row) for row in self._records.rows("pulls", state=state)]

    def reviews(self, number: int) -> list[ReviewSeen]:
        self._records.pull(number)
        return [review_seen(row) for row in self._records.rows("reviews", number=number)]

    def branch(self, name: str) -> BranchSeen | None:
        return self._watch.see_branch(require_branch(name))

    def mergeable(self, number: int) -> bool:
        pull = self.pull(number)
        if pull.state != "open":
            return False
        try:
            self._repository.merge_tree(self._watch.main_tip(), pull.head)
        except MergeConflict:
            return False
        return True

    def checks(self, head: str) -> Checks:
        return Checks(state="none")

    def diff(self, number: int) -> str:
        """What a pull request changes, or changed once it is merged."""
        pull = self.pull(number)
        if not pull.merge_commit:
            return self._repository.diff(f"{self._watch.main_tip()}...{pull.head}")
        if len(self._repository.look(pull.merge_commit).parents) > 1:
            return self._repository.diff(f"{pull.merge_commit}^1", pull.merge_commit)
        row = self._records.row("pull", number=number)
        base = row["base"] if row else pull.merge_commit
        return self._repository.diff(f"{base}...{pull.head}")

    def find_issue(self, key: str) -> IssueSeen | None:
        row = self._records.row("issue_marked", key=key, author=self.author) if key else None
        return issue_seen(row) if row else None

    def find_comment(self, number: int, key: str) -> CommentSeen | None:
        self._records.require(number)
        values = {"number": number, "key": key, "author": self.author}
        row = self._records.row("comment_marked", **values) if key else None
        return comment_seen(row) if row else None

    def find_pull(self, branch: str, key: str) -> PullSeen | None:
        self._watch.notice()
        values = {"branch": branch, "key": key, "author": self.author}
        row = self._records.row("pull_marked", **values) if key else None
        return pull_seen(row) if row else None

    def find_review(self, number: int, key: str) -> ReviewSeen | None:
        self._records.pull(number)
        values = {"number": number, "key": key, "author": self.author}
        row = self._records.row("review_marked", **values) if key else None
        return review_seen(row) if row else None


def _since(cursor: str) -> int:
    if (cursor or "0").isdecimal():
        return int(cursor or 0)
    try:
        datetime.fromisoformat(cursor)
    except ValueError:
        raise UsageError(
            f"{cursor!r} is no cursor of this forge", hint="begin with an empty one, or with a time"
        ) from None
    # A snapshot that is reported twice changes nothing, so a time may mean everything.
    return 0
