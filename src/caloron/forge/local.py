"""The forge on one's own disk: a bare git repository and an SQLite file beside it.

Git holds the commits and the refs, SQLite holds what people say about them. Nothing spans both:
git changes first, and the records catch up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from caloron.domain.observations import (
    BranchSeen,
    CommentSeen,
    IssueSeen,
    PullSeen,
    ReviewSeen,
    Verdict,
)
from caloron.errors import (
    ForgeError,
    MergeConflict,
    NotFound,
    StaleBase,
    StaleHead,
    UsageError,
)
from caloron.forge.local_create import catch_up, create_repository
from caloron.forge.local_git import MAIN, git_failure
from caloron.forge.local_input import (
    require_branch,
    require_commit,
    require_storable,
    require_text,
)
from caloron.forge.local_read import LocalReader
from caloron.forge.local_records import (
    Change,
    MergeRecord,
    Records,
    comment_seen,
    issue_seen,
    review_seen,
)
from caloron.ports import Merged


class LocalForge(LocalReader):
    """The `Forge` port on `<directory>/forge.git` and `<directory>/forge.sqlite`."""

    def catch_up(self, source: Path) -> bool:
        """Fast-forward main to the user's own repository; False if the two have diverged."""
        with self._repository.merging():
            return catch_up(self._repository, source)

    def create_issue(self, title: str, body: str, labels: tuple[str, ...] = ()) -> IssueSeen:
        require_text("the title of an issue", title)
        require_storable("the body of an issue", body)
        for label in labels:
            require_text("a label", label)
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

    def comment(self, number: int, body: str) -> CommentSeen:
        require_text("a comment", body)
        self._records.require(number)
        with self._records.change("comment") as change:
            row = change.write("comment", issue=number, author=self.actor, body=body)
        assert row is not None
        return comment_seen(row)

    def edit_comment(self, number: int, comment: int, body: str) -> CommentSeen:
        require_text("a comment", body)
        self._records.require(number)
        with self._records.change("comment") as change:
            row = change.write("edit_comment", id=comment, issue=number, body=body)
        if row is None:
            raise NotFound(f"#{number} has no comment {comment}")
        return comment_seen(row)

    def edit_issue(self, number: int, body: str) -> IssueSeen:
        require_storable("the body of an issue", body)
        self.issue(number)
        with self._records.change("edit_issue") as change:
            change.write("edit_issue", number=number, body=body)
        return self._records.issue(number)

    def label(self, number: int, label: str) -> IssueSeen:
        require_text("a label", label)
        self._records.issue(number)
        with self._records.change("label") as change:
            row = change.row("issue", number=number)
            held = issue_seen(row).labels if row else ()
            if label not in held:
                change.write("label_issue", number=number, labels=_label_set((*held, label)))
        return self._records.issue(number)

    def unlabel(self, number: int, label: str) -> IssueSeen:
        self._records.issue(number)
        with self._records.change("label") as change:
            row = change.row("issue", number=number)
            held = issue_seen(row).labels if row else ()
            if label in held:
                kept = _label_set([name for name in held if name != label])
                change.write("label_issue", number=number, labels=kept)
        return self._records.issue(number)

    def close_issue(self, number: int) -> IssueSeen:
        self.issue(number)
        with self._records.change("close_issue") as change:
            change.close_issue(number, self.actor)
        return self._records.issue(number)

    def reopen_issue(self, number: int) -> IssueSeen:
        self.issue(number)
        with self._records.change("reopen_issue") as change:
            row = change.row("issue", number=number)
            if row is not None and row["state"] == "closed":
                change.write("reopen_issue", number=number)
        return self._records.issue(number)

    def push(self, source: Path, branch: str, new: str, old: str) -> BranchSeen:
        require_branch(branch)
        require_commit(new)
        self._watch.notice()
        tip = self._repository.tip(branch) or ""
        if tip != new:
            if tip != old:
                raise _stale_head(branch, tip, old)
            done = self._repository.push_from(source, branch, new, old)
            tip = self._repository.tip(branch) or ""
            if tip not in (new, old):
                raise _stale_head(branch, tip, old)
            if tip != new:
                raise git_failure(source, ("push",), done)
        seen = self._watch.see_branch(branch)
        if seen is None:
            raise _stale_head(branch, "", new)
        return seen

    def open_pull(self, title: str, body: str, branch: str) -> PullSeen:
        require_text("the title of a pull request", title)
        require_storable("the body of a pull request", body)
        if require_branch(branch) == self.main:
            raise UsageError(
                f"{self.main} cannot be merged into itself", hint="push the work to its own branch"
            )
        self._watch.notice()
        head = self._repository.tip(branch)
        if head is None:
            raise NotFound(f"there is no branch {branch} to merge", hint="push it first")
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
            raise ForgeError(
                f"branch {branch} already has the open pull request #{other['number']}",
                hint=f"use #{other['number']}, or close it first",
            )

    def edit_pull(self, number: int, body: str) -> PullSeen:
        require_storable("the body of a pull request", body)
        self.pull(number)
        with self._records.change("edit_pull") as change:
            change.write("edit_pull", number=number, body=body)
        return self._records.pull(number)

    def close_pull(self, number: int) -> PullSeen:
        # Under the merge lock: a merge under way ends as merged, never as closed.
        with self._repository.merging():
            self._watch.catch_up()
            pull = self._records.pull(number)
            if pull.state == "open":
                ended = {"state": "closed", "head": pull.head, "by": self.actor, "commit": ""}
                with self._records.change("close_pull") as change:
                    change.write("end_pull", number=number, **ended)
        return self._records.pull(number)

    def reopen_pull(self, number: int) -> PullSeen:
        """Open a closed pull request again, at the tip that its branch has now."""
        with self._repository.merging():
            self._watch.catch_up()
            pull = self._records.pull(number)
            if pull.state == "merged":
                raise ForgeError(f"pull request #{number} is merged")
            head = self._repository.tip(pull.branch)
            if head is None:
                raise NotFound(f"there is no branch {pull.branch} to merge", hint="push it first")
            if pull.state == "closed":
                with self._records.change("reopen_pull") as change:
                    self._refuse_second(change, pull.branch)
                    change.write("reopen_pull", number=number, head=head)
        return self._records.pull(number)

    def review(self, number: int, head: str, verdict: Verdict, body: str) -> ReviewSeen:
        """Say what one thinks of a head; an empty one means the current head."""
        if verdict not in get_args(Verdict):
            raise UsageError(
                f"{verdict!r} is no verdict", hint=f"use one of {', '.join(get_args(Verdict))}"
            )
        require_storable("the body of a review", body)
        pull = self.pull(number)
        head = require_commit(head or pull.head)
        with self._records.change("review") as change:
            row = change.write(
                "review", pull=number, head=head, verdict=verdict, author=self.actor, body=body
            )
        assert row is not None
        return review_seen(row)

    def merge(self, number: int, head: str, base: str, message: str) -> Merged:
        """Merge exactly `head` into exactly `base`; empty means whatever it is now."""
        require_storable("the message of a merge", message)
        with self._repository.merging():
            watched = self._watch.catch_up()
            pull = self._records.pull(number)
            if pull.state == "merged" and head in ("", pull.head):
                return Merged(pull, did_it=False)
            head, base = self._to_merge(pull, head, base)
            message = message.strip() or f"Merge pull request #{number}: {pull.title}"
            commit = self._merge(pull, head, base, message)
            self._watch.record_merge(MergeRecord(number, head, commit, self.actor), watched)
        return Merged(self._records.pull(number), did_it=True)

    def _to_merge(self, pull: PullSeen, head: str, base: str) -> tuple[str, str]:
        """The head and base to merge, if they are still what was expected."""
        name = f"pull request #{pull.number}"
        if pull.state == "merged":
            raise StaleHead(f"{name} was merged at {pull.head}, not at {head}")
        if pull.state == "closed":
            raise ForgeError(f"{name} is closed", hint="open a new one for its branch")
        tip = self._repository.tip(pull.branch) or ""
        if not tip or tip != (head or tip):
            raise _stale_head(pull.branch, tip, head or pull.head)
        main = self._watch.main_tip()
        if main != (base or main):
            raise _stale_base(main, base)
        if self._repository.contains(main, tip):
            raise ForgeError(
                f"{name} has nothing to merge: {self.main} contains all of {pull.branch}",
                hint="push commits to the branch, or close the pull request",
            )
        return tip, main

    def _merge(self, pull: PullSeen, head: str, base: str, message: str) -> str:
        try:
            tree = self._repository.merge_tree(base, head)
        except MergeConflict as conflict:
            raise MergeConflict(
                f"pull request #{pull.number} conflicts with {self.main}: {conflict}",
                hint=f"merge {self.main} into {pull.branch}, settle the conflict and push",
            ) from conflict
        commit = self._repository.commit(tree, (base, head), message)
        if not self._repository.move(self.main, commit, base):
            raise _stale_base(self._watch.main_tip(), base)
        return commit


def create_local_forge(directory: Path, *, source: Path | None = None, name: str) -> LocalForge:
    """Make the forge of a project, or finish what an interrupted call began.

    Its main starts as the commit checked out in `source`, else with a README of the project.
    """
    create_repository(directory / "forge.git", source, name)
    Records(directory / "forge.sqlite").close()
    forge = LocalForge(directory)
    forge.poll("")
    return forge


def _label_set(labels: Sequence[str]) -> str:
    return json.dumps(sorted(set(labels)))


def _stale_head(branch: str, tip: str, expected: str) -> StaleHead:
    return StaleHead(
        f"branch {branch} is {f'at {tip}' if tip else 'not there'}, "
        f"not {f'at {expected}' if expected else 'absent'} as expected",
        hint="look at what is there now, then decide again",
    )


def _stale_base(tip: str, expected: str) -> StaleBase:
    return StaleBase(
        f"{MAIN} is at {tip}, not at {expected} as expected",
        hint="verify the result on the new main, then merge again",
    )
