"""The forge on the user's own disk: a bare git repository and an SQLite file beside it.

Git stores the commits and the refs, SQLite stores issues, pull requests, comments and reviews.
No transaction spans both: git changes first, and the records follow.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from caloron.domain.model.snapshots import (
    BranchSnapshot,
    CommentSnapshot,
    IssueSnapshot,
    PullSnapshot,
    ReviewSnapshot,
    Verdict,
)
from caloron.errors import (
    ForgeError,
    MergeConflict,
    NotFound,
    PreconditionFailed,
    StaleHead,
    UsageError,
)
from caloron.forge.local.records import (
    Change,
    MergeRecord,
    Records,
    comment_snapshot,
    issue_snapshot,
    pull_snapshot,
    review_snapshot,
)
from caloron.forge.local.refs import MAIN, ForgeRepository, RefSync
from caloron.forge.validate import (
    no_branch,
    require_commit,
    require_issue,
    require_local_branch,
    require_pull,
    require_review,
    require_storable,
    require_text,
    second_pull,
    stale_base,
    stale_head,
)
from caloron.git.command import IDENTITY
from caloron.ports import Checks, Merged, Poll, Remote, RepositoryInfo, State, VerifiedMerge

T = TypeVar("T")


class LocalForge:
    """The `Forge` port on `<directory>/forge.git` and `<directory>/forge.sqlite`.

    Reads first record what plain git commands changed.
    """

    author = reviewer = "caloron"
    main = MAIN

    def __init__(
        self,
        directory: Path,
        *,
        actor: str = "caloron",
        identity: tuple[str, str] = IDENTITY,
    ) -> None:
        repository, records = directory / "forge.git", directory / "forge.sqlite"
        if not (repository.is_dir() and records.is_file()):
            raise PreconditionFailed(
                f"there is no complete forge in {directory}",
                hint="`caloron init` makes one, and finishes one that it was stopped at;"
                " a project of an older Caloron gets one with its first `caloron sprint`",
            )
        self.actor = actor
        self._repository = ForgeRepository(repository.resolve(), identity)
        self._records = Records(records)
        self._refs = RefSync(self._repository, self._records, self.author)

    def close(self) -> None:
        self._records.close()
        self._repository.close()

    def remote(self) -> Remote:
        return Remote(str(self._repository.path))

    def about(self) -> RepositoryInfo:
        return RepositoryInfo(kind="local", url=str(self._repository.path))

    def url(self, number: int, *, pull: bool = False) -> str:
        return ""

    def poll(self, cursor: str) -> Poll:
        since = _since(cursor)
        version = self._refs.refresh()
        if version <= since:
            return Poll((), str(since))
        return Poll(self._records.changed(since, version), str(version))

    def issue(self, number: int) -> IssueSnapshot:
        self._refs.refresh()
        return self._records.issue(number)

    def issues(self, state: State = "all", label: str = "") -> list[IssueSnapshot]:
        self._refs.refresh()
        issues = [issue_snapshot(row) for row in self._records.rows("issues", state=state)]
        return [issue for issue in issues if not label or label in issue.labels]

    def comments(self, number: int) -> list[CommentSnapshot]:
        self._records.require(number)
        return [comment_snapshot(row) for row in self._records.rows("comments", number=number)]

    def pull(self, number: int) -> PullSnapshot:
        self._refs.refresh()
        return self._records.pull(number)

    def pulls(self, state: State = "all") -> list[PullSnapshot]:
        self._refs.refresh()
        return [pull_snapshot(row) for row in self._records.rows("pulls", state=state)]

    def reviews(self, number: int) -> list[ReviewSnapshot]:
        self._records.pull(number)
        return [review_snapshot(row) for row in self._records.rows("reviews", number=number)]

    def branch(self, name: str) -> BranchSnapshot | None:
        return self._refs.see_branch(require_local_branch(name))

    def mergeable(self, number: int) -> bool:
        pull = self.pull(number)
        if pull.state != "open":
            return False
        try:
            self._repository.merged_tree(self._refs.main_tip(), pull.head)
        except MergeConflict:
            return False
        return True

    def checks(self, head: str) -> Checks:
        return Checks(state="none")

    def diff(self, number: int) -> str:
        """The changes of a pull request, also after it is merged."""
        pull = self.pull(number)
        if not pull.merge_commit:
            return self._diff(f"{self._refs.main_tip()}...{pull.head}")
        if len(self._repository.parents(pull.merge_commit)) > 1:
            return self._diff(f"{pull.merge_commit}^1", pull.merge_commit)
        row = self._records.row("pull", number=number)
        base = row["base"] if row else pull.merge_commit
        return self._diff(f"{base}...{pull.head}")

    def _diff(self, *revisions: str) -> str:
        options = ("--no-color", "--no-ext-diff", "--no-textconv")
        return self._repository.git("diff", *options, *revisions, "--")

    def find_issue(self, key: str) -> IssueSnapshot | None:
        return self._marked("issue_marked", issue_snapshot, key)

    def find_comment(self, number: int, key: str) -> CommentSnapshot | None:
        self._records.require(number)
        return self._marked("comment_marked", comment_snapshot, key, number=number)

    def find_pull(self, branch: str, key: str) -> PullSnapshot | None:
        self._refs.refresh()
        return self._marked("pull_marked", pull_snapshot, key, branch=branch)

    def find_review(self, number: int, key: str) -> ReviewSnapshot | None:
        self._records.pull(number)
        return self._marked("review_marked", review_snapshot, key, number=number)

    def _marked(
        self, statement: str, read: Callable[[sqlite3.Row], T], key: str, **values: Any
    ) -> T | None:
        """Our own object with a marker."""
        values |= {"key": key, "author": self.author}
        row = self._records.row(statement, **values) if key else None
        return read(row) if row else None

    def fast_forward_from(self, source: Path) -> bool:
        """Fast-forward main to the user's own repository; False if the two have diverged."""
        with self._repository.merge_lock():
            from caloron.forge.local.create import fast_forward_from

            return fast_forward_from(self._repository, source)

    def create_issue(self, title: str, body: str, labels: tuple[str, ...] = ()) -> IssueSnapshot:
        require_issue(title, body, labels)
        with self._records.change("issue") as change:
            number = change.next_number()
            change.write(
                "create_issue",
                number=number,
                title=title,
                body=body,
                author=self.actor,
                labels=_label_set(labels),
            )
        return self._records.issue(number)

    def comment(self, number: int, body: str) -> CommentSnapshot:
        require_text("a comment", body)
        self._records.require(number)
        row = self._write("comment", issue=number, author=self.actor, body=body)
        assert row is not None
        return comment_snapshot(row)

    def edit_comment(self, number: int, comment: int, body: str) -> CommentSnapshot:
        require_text("a comment", body)
        self._records.require(number)
        with self._records.change("comment") as change:
            row = change.write("edit_comment", id=comment, issue=number, body=body)
        if row is None:
            raise NotFound(f"#{number} has no comment {comment}")
        return comment_snapshot(row)

    def _write(self, statement: str, **values: Any) -> sqlite3.Row | None:
        """Run one statement as a change of its own."""
        with self._records.change(statement) as change:
            return change.write(statement, **values)

    def edit_issue(self, number: int, body: str, title: str = "") -> IssueSnapshot:
        require_storable("the body of an issue", body)
        require_storable("the title of an issue", title)
        self.issue(number)
        self._write("edit_issue", number=number, body=body, title=title)
        return self._records.issue(number)

    def label(self, number: int, label: str) -> IssueSnapshot:
        require_text("a label", label)
        return self._set_label(number, label, present=True)

    def unlabel(self, number: int, label: str) -> IssueSnapshot:
        return self._set_label(number, label, present=False)

    def _set_label(self, number: int, label: str, *, present: bool) -> IssueSnapshot:
        with self._records.change("label") as change:
            labels = set(self._records.issue(number).labels)
            if (label in labels) != present:
                change.write("label_issue", number=number, labels=_label_set(labels ^ {label}))
        return self._records.issue(number)

    def close_issue(self, number: int) -> IssueSnapshot:
        self.issue(number)
        with self._records.change("close_issue") as change:
            change.close_issue(number, self.actor)
        return self._records.issue(number)

    def reopen_issue(self, number: int) -> IssueSnapshot:
        self.issue(number)
        with self._records.change("reopen_issue") as change:
            row = change.row("issue", number=number)
            if row is not None and row["state"] == "closed":
                change.write("reopen_issue", number=number)
        return self._records.issue(number)

    def push(self, source: Path, branch: str, new: str, old: str) -> BranchSnapshot:
        require_local_branch(branch)
        require_commit(new)
        self._refs.refresh()
        tip = self._repository.tip(branch) or ""
        if tip != new:
            if tip != old:
                raise stale_head(branch, tip, old)
            tip = self._repository.push_from(source, branch, new, old)
            if tip != new:
                raise stale_head(branch, tip, old)
        snapshot = self._refs.see_branch(branch)
        if snapshot is None:
            raise stale_head(branch, "", new)
        return snapshot

    def open_pull(self, title: str, body: str, branch: str) -> PullSnapshot:
        require_pull(title, body, require_local_branch(branch), self.main)
        self._refs.refresh()
        head = self._repository.tip(branch)
        if head is None:
            raise no_branch(branch)
        with self._records.change("pull") as change:
            self._refuse_second(change, branch)
            number = change.next_number()
            change.write(
                "open_pull",
                number=number,
                title=title,
                body=body,
                author=self.actor,
                branch=branch,
                head=head,
            )
        return self._records.pull(number)

    def _refuse_second(self, change: Change, branch: str) -> None:
        other = change.row("pull_open", branch=branch)
        if other is not None:
            raise second_pull(branch, other["number"])

    def edit_pull(self, number: int, body: str) -> PullSnapshot:
        require_storable("the body of a pull request", body)
        self.pull(number)
        self._write("edit_pull", number=number, body=body)
        return self._records.pull(number)

    def close_pull(self, number: int) -> PullSnapshot:
        # Under the merge lock: a merge under way ends as merged, never as closed.
        with self._repository.merge_lock():
            self._refs.sync_records()
            pull = self._records.pull(number)
            if pull.state == "open":
                ended = {"state": "closed", "head": pull.head, "by": self.actor, "commit": ""}
                self._write("end_pull", number=number, **ended)
        return self._records.pull(number)

    def reopen_pull(self, number: int) -> PullSnapshot:
        """Open a closed pull request again, at the tip that its branch has now."""
        with self._repository.merge_lock():
            self._refs.sync_records()
            pull = self._records.pull(number)
            if pull.state == "merged":
                raise ForgeError(f"pull request #{number} is merged")
            head = self._repository.tip(pull.branch)
            if head is None:
                raise no_branch(pull.branch)
            if pull.state == "closed":
                with self._records.change("reopen_pull") as change:
                    self._refuse_second(change, pull.branch)
                    change.write("reopen_pull", number=number, head=head)
        return self._records.pull(number)

    def review(self, number: int, head: str, verdict: Verdict, body: str) -> ReviewSnapshot:
        """Review a head; an empty one means the current head."""
        require_review(verdict, body)
        pull = self.pull(number)
        head = require_commit(head or pull.head)
        values = {"pull": number, "head": head, "verdict": verdict, "body": body}
        row = self._write("review", author=self.actor, **values)
        assert row is not None
        return review_snapshot(row)

    def merge(
        self,
        number: int,
        head: str,
        base: str,
        message: str,
        verified: VerifiedMerge | None = None,
    ) -> Merged:
        """Merge exactly `head` into exactly `base`; empty means whatever it is now."""
        require_storable("the message of a merge", message)
        with self._repository.merge_lock():
            tracked = self._refs.sync_records()
            pull = self._records.pull(number)
            if pull.state == "merged" and head in ("", pull.head):
                return Merged(pull, did_it=False)
            head, base = self._to_merge(pull, head, base, is_verified=verified is not None)
            # Main is pushed to other forges, where the number would name something else.
            message = message.strip() or f"Merge {pull.title}"
            if verified is None:
                commit = self._merge(pull, head, base, message)
            else:
                commit = self._push_main(verified, base)
            self._refs.record_merge(MergeRecord(number, head, commit, self.actor), tracked)
        return Merged(self._records.pull(number), did_it=True)

    def mark_merged(self, number: int, commit: str) -> PullSnapshot:
        """Record a merge that a crash cut short: main does not contain the head of a squash."""
        pull = self.pull(number)
        if pull.state == "open":
            with self._repository.merge_lock():
                tracked = self._refs.sync_records()
                mine = MergeRecord(number, pull.head, commit, self.actor)
                self._refs.record_merge(mine, tracked, main=self._refs.main_tip())
        return self._records.pull(number)

    def _to_merge(
        self, pull: PullSnapshot, head: str, base: str, *, is_verified: bool
    ) -> tuple[str, str]:
        """The head and base to merge, if they are still what was expected."""
        name = f"pull request #{pull.number}"
        if pull.state == "merged":
            raise StaleHead(f"{name} was merged at {pull.head}, not at {head}")
        if pull.state == "closed":
            raise ForgeError(f"{name} is closed", hint="open a new one for its branch")
        tip = self._repository.tip(pull.branch) or ""
        if not tip or tip != (head or tip):
            raise stale_head(pull.branch, tip, head or pull.head)
        main = self._refs.main_tip()
        if main != (base or main):
            raise stale_base(self.main, main, base)
        if not is_verified and self._repository.contains(main, tip):
            raise ForgeError(
                f"{name} has nothing to merge: {self.main} contains all of {pull.branch}",
                hint="push commits to the branch, or close the pull request",
            )
        return tip, main

    def _merge(self, pull: PullSnapshot, head: str, base: str, message: str) -> str:
        try:
            tree = self._repository.merged_tree(base, head)
        except MergeConflict as conflict:
            raise MergeConflict(
                f"pull request #{pull.number} conflicts with {self.main}: {conflict}",
                hint=f"merge {self.main} into {pull.branch}, settle the conflict and push",
            ) from conflict
        commit = self._repository.commit_tree(tree, (base, head), message)
        if not self._repository.move(self.main, commit, base):
            raise stale_base(self.main, self._refs.main_tip(), base)
        return commit

    def _push_main(self, verified: VerifiedMerge, base: str) -> str:
        require_commit(verified.commit)
        tip = self._repository.push_from(verified.source, self.main, verified.commit, base)
        if tip != verified.commit:
            raise stale_base(self.main, tip, base)
        return tip


def create_local_forge(directory: Path, *, source: Path | None = None, name: str) -> LocalForge:
    """Create the forge of a project, or finish an interrupted creation.

    Its main starts as the commit checked out in `source`, else with a README of the project.
    """
    # Only new projects need what this module imports.
    from caloron.forge.local.create import create_repository

    create_repository(directory / "forge.git", source, name)
    Records(directory / "forge.sqlite").close()
    forge = LocalForge(directory)
    forge.poll("")
    return forge


def _label_set(labels: Iterable[str]) -> str:
    return json.dumps(sorted(set(labels)))


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
