"""Our own clean repository of a project: what we fetch, compare, merge and push from.

No agent can write to it. Nothing in it is ever pruned, because workspaces borrow its objects.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from caloron.errors import NotFound
from caloron.git.bundle import unpack
from caloron.git.command import (
    GitError,
    git,
    git_environment,
    git_process,
    git_remote,
)
from caloron.git.commits import Commits
from caloron.git.locks import patiently
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

    def ensure(self) -> None:
        """Create the repository, or complete one whose creation was interrupted."""
        config = self.path / "config"
        if config.exists() and "pruneExpire" in config.read_text("utf-8", "replace"):
            return
        self.path.mkdir(parents=True, exist_ok=True)
        # Root's agents have user ids of their own and read it as others, whatever root's umask.
        shared = ("--shared=0644",) if os.geteuid() == 0 else ()
        patiently(lambda: self._git("init", "--quiet", "--bare", "--template=", *shared, "."))
        patiently(lambda: self._git("config", "gc.auto", "0"))
        patiently(lambda: self._git("config", "gc.pruneExpire", "never"))

    def fetch_main(self) -> str:
        """The newest commit of the main branch, now in our `refs/heads/<main>`."""
        ref = f"refs/heads/{self.main}"
        there = _loose_ref(Path(self.remote.url), ref)
        if there and there == _loose_ref(self.path, ref):
            return there
        if not self._fetch(ref, ref):
            raise NotFound(
                f"{self.remote.url} has no branch {self.main}",
                hint="push a first commit to it, or name another main branch",
            )
        return self.resolve(ref)

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
        arguments = ("merge-tree", "--write-tree", "--name-only", "--no-messages", "-z")
        unrelated = "--allow-unrelated-histories"
        done = git_process(self.path, *arguments, unrelated, base, head)
        # An unknown commit ends with 1 as a conflict does, but prints no tree.
        if done.returncode not in (0, 1) or not done.stdout:
            raise GitError(arguments, done.returncode, done.stderr.decode("utf-8", "replace"))
        tree, *files = done.stdout.decode("utf-8", "surrogateescape").rstrip("\0").split("\0")
        if done.returncode == 1:
            return Conflict(tuple(dict.fromkeys(files)))
        commit = self._commit(tree, (base, head), message, identity)
        self.keep(f"refs/caloron/merges/{commit}", commit)
        return Merged(commit, tree)

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
        patiently(lambda: self._git("update-ref", ref, commit))

    def import_bundle(self, path: Path, ref: str, cap_bytes: int) -> str:
        """Take the HEAD of a bundle in under `ref`, after checking every object in it."""
        head = unpack(self.path, path, cap_bytes)
        self.keep(ref, head)
        return head

    def _fetch(self, source: str, target: str) -> bool:
        """Fetch one ref, forced; False if the forge does not have it."""
        try:
            patiently(lambda: git_remote(self.path, self.remote, *_FETCH, f"+{source}:{target}"))
        except GitError as error:
            if "couldn't find remote ref" in error.stderr:
                return False
            raise
        return True


def _loose_ref(repository: Path, ref: str) -> str:
    """The value of a ref that stands in a file of its own; empty if git has to be asked."""
    try:
        value = (repository / ref).read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
    return "" if value.startswith("ref:") else value
