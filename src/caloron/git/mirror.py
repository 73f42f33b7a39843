"""Our own clean repository of a project: what we fetch, compare, merge and push from.

No agent can write to it. Nothing in it is ever pruned, because workspaces borrow its objects.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from caloron.errors import NotFound, PreconditionFailed
from caloron.git.command import (
    GitError,
    git,
    git_environment,
    git_process,
    git_remote,
)
from caloron.git.commits import Commits
from caloron.git.locks import patiently
from caloron.git.refs import BranchTips
from caloron.ports import Remote

CALORON_IDENTITY = ("Caloron", "caloron@localhost")

_FETCH = (
    "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules",
    # A user's repository may be shallow, and so is its forge then.
    "--update-shallow",
)  # fmt: skip


@dataclass(frozen=True)
class Merged:
    """A merge commit of two commits, not yet on any branch."""

    commit: str
    tree: str


@dataclass(frozen=True)
class Conflict:
    """The files that two commits change in ways that cannot be combined."""

    files: tuple[str, ...]


class Mirror(Commits):
    """A bare repository of ours that follows the project's forge."""

    def __init__(self, path: Path, remote: Remote, main: str = "main") -> None:
        super().__init__(path)
        self.remote = remote
        self.main = main
        self._tips = BranchTips(path)
        #: Only for a forge on this disk.
        self._forge_tips = BranchTips(Path(remote.url))

    def ensure(self) -> None:
        """Create the repository, or complete one whose creation was interrupted."""
        config = self.path / "config"
        if config.exists() and "pruneExpire" in config.read_text("utf-8", "replace"):
            self._refuse_lost_objects()
            return
        self.path.mkdir(parents=True, exist_ok=True)
        # Root's agents have user ids of their own and read it as others, whatever root's umask.
        shared = ("--shared=0644",) if os.geteuid() == 0 else ()
        patiently(
            self.path, lambda: self._git("init", "--quiet", "--bare", "--template=", *shared, ".")
        )
        patiently(self.path, lambda: self._git("config", "gc.auto", "0"))
        patiently(self.path, lambda: self._git("config", "gc.pruneExpire", "never"))

    def _refuse_lost_objects(self) -> None:
        """Refuse a repository whose refs name objects that are gone.

        It is not replaced here: `refs/salvage` may hold work that is nowhere else.
        """
        main = f"refs/heads/{self.main}"
        if git_process(self.path, "rev-parse", "--verify", "--quiet", main).returncode == 1:
            # Nothing was fetched yet. Other codes: git does not take it for a repository.
            return
        done = git_process(self.path, "cat-file", "-e", f"{main}^{{tree}}")
        if done.returncode != 0:
            raise PreconditionFailed(
                f"Caloron's copy of the repository is damaged: {self.path} has lost objects of"
                f" {self.main}",
                hint="move it aside, and the next sprint fetches it again (work that was saved only"
                f" there, under refs/salvage, is not fetched): mv {shlex.quote(str(self.path))}"
                f" {shlex.quote(str(self.path))}.damaged",
            )

    def fetch_main(self) -> str:
        """The newest commit of the main branch, now in our `refs/heads/<main>`."""
        ref = f"refs/heads/{self.main}"
        if here := self._main_if_newest():
            return here
        if not self._fetch(ref, ref):
            raise NotFound(
                f"{self.remote.url} has no branch {self.main}",
                hint="push a first commit to it, or name another main branch",
            )
        return self.resolve(ref)

    def _main_if_newest(self) -> str:
        """Our main if a forge on this disk has the same, known without a fetch; else empty."""
        if not Path(self.remote.url, "refs").is_dir():
            return ""
        try:
            there = self._forge_tips.read().commits.get(self.main, "")
            return there if there == self._tips.read().commits.get(self.main) else ""
        except GitError:
            # The fetch says what is wrong.
            return ""

    def newest_main(self) -> str:
        """The commit of the main branch that was fetched last."""
        return self.resolve(f"refs/heads/{self.main}")

    def fetch_branch(self, branch: str) -> str | None:
        """The newest commit of a branch on the forge, or None if it is not there."""
        ref = f"refs/remotes/forge/{branch}"
        return self.resolve(ref) if self._fetch(f"refs/heads/{branch}", ref) else None

    def fetch_head(self, head: str, branch: str, pull: int | None) -> None:
        """Get a commit that somebody pushed, from its branch or, in a fork, its pull request."""
        # A fork's branch has its owner before it, which no branch of ours can have.
        if ":" not in branch:
            self.fetch_branch(branch)
        if pull is not None and not self.has(head):
            self._fetch(f"refs/pull/{pull}/head", f"refs/remotes/forge-pulls/{pull}")

    def merge(
        self,
        base: str,
        head: str,
        message: str,
        identity: tuple[str, str] = CALORON_IDENTITY,
    ) -> Merged | Conflict:
        """Merge `head` into `base`; the same two commits and message give the same commit."""
        tree, files = self._merge_tree(base, head)
        if files is not None:
            return Conflict(files)
        commit = self._commit(tree, (base, head), message, identity)
        self.keep(f"refs/caloron/merges/{commit}", commit)
        return Merged(commit, tree)

    def brings_nothing(self, base: str, head: str) -> bool:
        """Whether `base` would be the same with `head` merged into it."""
        tree, conflicts = self._merge_tree(base, head)
        return conflicts is None and tree == self.tree(base)

    def _merge_tree(self, base: str, head: str) -> tuple[str, tuple[str, ...] | None]:
        """The tree of a merge, and the files in conflict; None: there is no conflict."""
        arguments = ("merge-tree", "--write-tree", "--name-only", "--no-messages", "-z")
        unrelated = "--allow-unrelated-histories"
        done = git_process(self.path, *arguments, unrelated, base, head)
        # An unknown commit ends with 1 as a conflict does, but prints no tree.
        if done.returncode not in (0, 1) or not done.stdout:
            raise GitError(arguments, done.returncode, done.stderr.decode("utf-8", "replace"))
        tree, *files = done.stdout.decode("utf-8", "surrogateescape").rstrip("\0").split("\0")
        return tree, tuple(dict.fromkeys(files)) if done.returncode == 1 else None

    def _commit(
        self, tree: str, parents: tuple[str, ...], message: str, identity: tuple[str, str]
    ) -> str:
        """A commit that is the same whenever and however often it is made."""
        dates = self._git("show", "--no-patch", "--format=%ct", *parents)
        date = f"@{max(int(line) for line in dates.split())} +0000"
        environment = git_environment(identity)
        environment |= {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        named = [option for parent in parents for option in ("-p", parent)]
        return git(
            self.path,
            *("commit-tree", tree, *named, "-F", "-"),
            stdin=message.encode(),
            environment=environment,
        )

    def first_commit(self, readme: str, identity: tuple[str, str]) -> str:
        """A commit for a repository that has none: nothing but a README."""
        blob = git(self.path, "hash-object", "-w", "--stdin", stdin=readme.encode())
        tree = git(self.path, "mktree", stdin=f"100644 blob {blob}\tREADME.md\n".encode())
        arguments = ("commit-tree", tree, "-m", "Start of the project")
        return git(self.path, *arguments, environment=git_environment(identity))

    def try_push(self, commit: str) -> None:
        """Knock as one who wants to push, and push nothing; a `GitError` if we are not let in."""
        what = f"{commit}:refs/heads/caloron/is-anybody-let-in"
        git_remote(self.path, self.remote, "push", "--quiet", "--dry-run", what)

    def same_tree_as(self, commit: str, parent: str, message: str) -> str:
        """A commit on top of `parent` that makes everything as it is in `commit`."""
        made = self._commit(self.tree(commit), (parent,), message, CALORON_IDENTITY)
        self.keep(f"refs/caloron/reverts/{made}", made)
        return made

    def keep(self, ref: str, commit: str) -> None:
        """Give a commit a name, so that it can be found and is never lost."""
        patiently(self.path, lambda: self._git("update-ref", ref, commit))

    def _fetch(self, source: str, target: str) -> bool:
        """Fetch one ref, forced; False if the forge does not have it."""
        try:
            patiently(
                self.path,
                lambda: git_remote(self.path, self.remote, *_FETCH, f"+{source}:{target}"),
            )
        except GitError as error:
            if "couldn't find remote ref" in error.stderr:
                return False
            raise
        return True
