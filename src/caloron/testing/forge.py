"""A forge in memory: the `Forge` port without git, and the people who use its pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from caloron.domain.model.facts import Fact
from caloron.domain.model.snapshots import (
    BranchSnapshot,
    CommentSnapshot,
    IssueSnapshot,
    PullSnapshot,
    ReviewSnapshot,
    Snapshot,
    Verdict,
    issues_closed_by,
    marker_key,
)
from caloron.errors import ForgeError, NotFound, StaleBase, StaleHead
from caloron.ports import Checks, Merged, Poll, Remote, RepositoryInfo, State, VerifiedMerge

_Authored = TypeVar("_Authored", IssueSnapshot, PullSnapshot, CommentSnapshot, ReviewSnapshot)
_S = TypeVar("_S", IssueSnapshot, PullSnapshot, CommentSnapshot, ReviewSnapshot, BranchSnapshot)


class InMemoryForge:
    """Issues, pull requests and branches; a commit is a name, a tree the changes that are in it.

    Every change has the argument `who`: the account that makes it, otherwise our own.
    """

    main = "main"

    def __init__(self, author: str = "caloron") -> None:
        self.author = self.reviewer = author
        #: The newest snapshot of every object.
        self.objects: dict[str, Snapshot] = {}
        #: The commit of each branch.
        self.branches: dict[str, str] = {}
        #: The changes in each commit of main, in order.
        self.trees: dict[str, tuple[str, ...]] = {}
        #: The forge's own CI: its result for a head.
        self.ci: dict[str, Literal["pending", "green", "red"]] = {}
        #: Like a forge that cannot be told the base of a merge: it merges into any.
        self.ignores_base = False
        #: Accounts that have no say here.
        self.untrusted: set[str] = set()
        self.version = self.number = self.commits = 0
        first = self.new_commit()
        self.trees[first] = (first,)
        self._move("main", first)

    # Reading

    def remote(self) -> Remote:
        return Remote("memory:")

    def about(self) -> RepositoryInfo:
        return RepositoryInfo(kind="memory", url="memory:")

    def close(self) -> None:
        """There is nothing to close."""

    def url(self, number: int, *, pull: bool = False) -> str:
        return ""

    def poll(self, cursor: str) -> Poll:
        seen = int(cursor or 0)
        changed = tuple(o for o in self.objects.values() if o.version > seen)
        return Poll(changed, str(self.version))

    def issue(self, number: int | None) -> IssueSnapshot:
        return self._get(IssueSnapshot, f"issue:{number}")

    def issues(self, state: State = "all", label: str = "") -> list[IssueSnapshot]:
        return [
            issue
            for issue in self._all(IssueSnapshot)
            if state in ("all", issue.state) and (not label or label in issue.labels)
        ]

    def comments(self, number: int) -> list[CommentSnapshot]:
        return [c for c in self._all(CommentSnapshot) if c.issue == number]

    def pull(self, number: int | None) -> PullSnapshot:
        return self._get(PullSnapshot, f"pull:{number}")

    def pulls(self, state: State = "all") -> list[PullSnapshot]:
        return [pull for pull in self._all(PullSnapshot) if state in ("all", pull.state)]

    def reviews(self, number: int) -> list[ReviewSnapshot]:
        return [review for review in self._all(ReviewSnapshot) if review.pull == number]

    def branch(self, name: str) -> BranchSnapshot | None:
        commit = self.branches.get(name)
        return BranchSnapshot(version=self.version, name=name, commit=commit) if commit else None

    def mergeable(self, number: int) -> bool:
        return self.pull(number).state == "open"

    def diff(self, number: int) -> str:
        return f"+{self.pull(number).head}\n"

    def checks(self, head: str) -> Checks:
        return Checks(state=self.ci.get(head, "none"))

    def find_issue(self, key: str) -> IssueSnapshot | None:
        return self._find(self.issues(), key)

    def find_comment(self, number: int, key: str) -> CommentSnapshot | None:
        return self._find(self.comments(number), key)

    def find_pull(self, branch: str, key: str) -> PullSnapshot | None:
        return self._find([pull for pull in self.pulls() if pull.branch == branch], key)

    def find_review(self, number: int, key: str) -> ReviewSnapshot | None:
        return self._find(self.reviews(number), key)

    # Issues

    def create_issue(
        self, title: str, body: str, labels: tuple[str, ...] = (), *, who: str = ""
    ) -> IssueSnapshot:
        fields: dict[str, Any] = {"title": title, "body": body, "labels": labels}
        return self._new(IssueSnapshot, who, number=self._number(), state="open", **fields)

    def change_issue(self, number: int, **fields: Any) -> IssueSnapshot:
        """Change any fields of an issue."""
        return self._change(self.issue(number), **fields)

    def edit_issue(self, number: int, body: str, title: str = "") -> IssueSnapshot:
        return self.change_issue(number, body=body, **({"title": title} if title else {}))

    def label(self, number: int, label: str) -> IssueSnapshot:
        return self.change_issue(number, labels=(*self.issue(number).labels, label))

    def unlabel(self, number: int, label: str) -> IssueSnapshot:
        labels = tuple(name for name in self.issue(number).labels if name != label)
        return self.change_issue(number, labels=labels)

    def close_issue(self, number: int, *, who: str = "") -> IssueSnapshot:
        return self.change_issue(number, state="closed", closed_by=who or self.author)

    def reopen_issue(self, number: int) -> IssueSnapshot:
        return self.change_issue(number, state="open", closed_by="")

    def comment(self, number: int, body: str, *, who: str = "") -> CommentSnapshot:
        return self._new(CommentSnapshot, who, id=self._number(), issue=number, body=body)

    def edit_comment(self, number: int, comment: int, body: str) -> CommentSnapshot:
        return self._change(self._get(CommentSnapshot, f"comment:{comment}"), body=body)

    # Branches and pull requests

    def new_commit(self) -> str:
        self.commits += 1
        return f"c{self.commits}"

    def push(
        self, source: Path | None, branch: str, new: str, old: str, *, force: bool = False
    ) -> BranchSnapshot:
        if self.branches.get(branch, "") != old and not force:
            raise StaleHead(f"{branch} is not at {old or 'no commit'}")
        return self._move(branch, new)

    def push_main(self) -> BranchSnapshot:
        """Put a new commit on main, past every pull request."""
        commit = self.new_commit()
        self.trees[commit] = (*self.trees[self.branches["main"]], commit)
        return self._move("main", commit)

    def open_pull(self, title: str, body: str, branch: str, *, who: str = "") -> PullSnapshot:
        if branch not in self.branches:
            raise NotFound(f"there is no branch {branch}")
        self._refuse_second_pull(branch)
        fields: dict[str, Any] = {"title": title, "body": body, "closes": issues_closed_by(body)}
        fields |= {"branch": branch, "head": self.branches[branch]}
        return self._new(PullSnapshot, who, number=self._number(), state="open", **fields)

    def edit_pull(self, number: int, body: str) -> PullSnapshot:
        return self._change(self.pull(number), body=body)

    def close_pull(self, number: int, *, who: str = "") -> PullSnapshot:
        return self._change(self.pull(number), state="closed", ended_by=who or self.author)

    def reopen_pull(self, number: int) -> PullSnapshot:
        pull = self.pull(number)
        if pull.state != "closed" or pull.branch not in self.branches:
            raise ForgeError(f"pull request #{number} cannot be opened again")
        self._refuse_second_pull(pull.branch)
        return self._change(pull, state="open", ended_by="", head=self.branches[pull.branch])

    def review(
        self, number: int, head: str, verdict: Verdict, body: str, *, who: str = ""
    ) -> ReviewSnapshot:
        pull = self._open(number)
        if pull.head != head:
            raise StaleHead(f"pull request #{number} is at {pull.head}")
        fields: dict[str, Any] = {"pull": number, "head": head, "verdict": verdict, "body": body}
        return self._new(ReviewSnapshot, who, id=self._number(), **fields)

    def merge(
        self,
        number: int,
        head: str,
        base: str,
        message: str,
        verified: VerifiedMerge | None = None,
        *,
        who: str = "",
    ) -> Merged:
        pull = self._open(number)
        if self.branches.get(pull.branch) != head:
            raise StaleHead(f"{pull.branch} is not at {head}")
        main = self.branches["main"]
        if base != main and not self.ignores_base:
            raise StaleBase(f"main is at {main}")
        commit = self.new_commit()
        self.trees[commit] = self.merged_tree(self.trees[main], head)
        self._move("main", commit)
        ended_by = who or self.author
        return Merged(
            self._change(pull, state="merged", ended_by=ended_by, merge_commit=commit), did_it=True
        )

    def mark_merged(self, number: int, commit: str) -> PullSnapshot:
        return self._change(self.pull(number), state="merged", merge_commit=commit)

    def revert_commit(self, head: str) -> str:
        """Return a commit whose merge takes a change out of main again."""
        return f"-{head}/{self.new_commit()}"

    def merged_tree(self, tree: tuple[str, ...], head: str) -> tuple[str, ...]:
        """Return the tree that a merge of a head makes of one."""
        reverted = head.partition("/")[0].removeprefix("-") if head.startswith("-") else ""
        return tuple(change for change in (*tree, head) if change != reverted)

    # Keeping

    def _new(self, kind: type[_Authored], who: str, **fields: Any) -> _Authored:
        """Make an object of an account, of ours if none is named."""
        trusted = who not in self.untrusted
        return self._put(
            kind(version=self._next(), author=who or self.author, trusted=trusted, **fields)
        )

    def _next(self) -> int:
        self.version += 1
        return self.version

    def _number(self) -> int:
        self.number += 1
        return self.number

    def _put(self, snapshot: _S) -> _S:
        self.objects[snapshot.object] = snapshot
        return snapshot

    def _change(self, snapshot: _S, **fields: Any) -> _S:
        return self._put(msgspec.structs.replace(snapshot, version=self._next(), **fields))

    def _get(self, kind: type[_S], name: str) -> _S:
        snapshot = self.objects.get(name)
        if not isinstance(snapshot, kind):
            raise NotFound(f"there is no {name}")
        return snapshot

    def _all(self, kind: type[_S]) -> list[_S]:
        return [snapshot for snapshot in self.objects.values() if isinstance(snapshot, kind)]

    def _find(self, snapshots: list[_S], key: str) -> _S | None:
        for snapshot in snapshots:
            if isinstance(snapshot, BranchSnapshot) or snapshot.author != self.author:
                continue
            if marker_key(snapshot.body) == key:
                return snapshot
        return None

    def _open(self, number: int) -> PullSnapshot:
        pull = self.pull(number)
        if pull.state != "open":
            raise ForgeError(f"pull request #{number} is {pull.state}")
        return pull

    def _refuse_second_pull(self, branch: str) -> None:
        if any(pull.branch == branch for pull in self.pulls("open")):
            raise ForgeError(f"a pull request of {branch} is open")

    def _move(self, branch: str, commit: str) -> BranchSnapshot:
        self.branches[branch] = commit
        for pull in self.pulls("open"):
            if pull.branch == branch:
                self._change(pull, head=commit)
        return self._put(BranchSnapshot(version=self._next(), name=branch, commit=commit))


class Person:
    """A person who uses the forge; `facts` gets every change at once, as from a webhook."""

    def __init__(self, forge: InMemoryForge, name: str, facts: list[Fact]) -> None:
        self.name = name
        self._forge = forge
        self._facts = facts

    def _report(self, snapshot: _S) -> _S:
        self._facts.append(snapshot)
        return snapshot

    def open_issue(self, title: str, body: str, *labels: str) -> int:
        return self._report(self._forge.create_issue(title, body, labels, who=self.name)).number

    def close_issue(self, number: int) -> None:
        self._report(self._forge.close_issue(number, who=self.name))

    def reopen_issue(self, number: int) -> None:
        self._report(self._forge.reopen_issue(number))

    def edit_issue(self, number: int, body: str) -> None:
        self._report(self._forge.edit_issue(number, body))

    def set_labels(self, number: int, *labels: str) -> None:
        self._report(self._forge.change_issue(number, labels=labels))

    def comment(self, number: int, body: str) -> CommentSnapshot:
        return self._report(self._forge.comment(number, body, who=self.name))

    def open_pull(self, issue: int, branch: str = "ada/own") -> PullSnapshot:
        """Push a branch of their own and propose it for an issue."""
        commit = self._forge.new_commit()
        self._forge.push(None, branch, commit, "", force=True)
        body = f"Closes #{issue}"
        return self._report(self._forge.open_pull("mine", body, branch, who=self.name))

    def edit_pull(self, number: int, body: str) -> None:
        self._report(self._forge.edit_pull(number, body))

    def close_pull(self, number: int) -> None:
        self._report(self._forge.close_pull(number, who=self.name))

    def reopen_pull(self, number: int) -> None:
        self._report(self._forge.reopen_pull(number))

    def merge_pull(self, number: int) -> None:
        head, base = self._forge.pull(number).head, self._forge.branches["main"]
        self._report(self._forge.merge(number, head, base, "", who=self.name).pull)
        self._report_branch("main")

    def review(self, pull: int, verdict: Verdict, body: str = "") -> ReviewSnapshot:
        head = self._forge.pull(pull).head
        return self._report(self._forge.review(pull, head, verdict, body, who=self.name))

    def push(self, pull: int) -> str:
        """Push a new commit to the branch of a pull request."""
        commit = self._forge.new_commit()
        self._forge.push(None, self._forge.pull(pull).branch, commit, "", force=True)
        self._report(self._forge.pull(pull))
        return commit

    def push_main(self) -> str:
        return self._report(self._forge.push_main()).commit

    def delete_branch(self, name: str) -> None:
        self._forge.branches.pop(name, None)

    def _report_branch(self, name: str) -> None:
        if branch := self._forge.branch(name):
            self._report(branch)
