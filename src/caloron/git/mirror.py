"""Our own clean repository of a project: what we fetch, compare, merge and push from.

No agent can write to it. Nothing in it is ever pruned, because workspaces borrow its objects.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from caloron.domain.model.merge import MergeStyle
from caloron.errors import NotFound, PreconditionFailed
from caloron.git.command import (
    IDENTITY,
    GitError,
    git_environment,
    git_process,
    git_remote,
    retry_on_lock,
)
from caloron.git.objects import ObjectReader
from caloron.git.repository import Repository
from caloron.ports import Remote
from caloron.store import log

_FETCH = (
    "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules",
    # A user's repository may be shallow, and so is its forge then.
    "--update-shallow",
)  # fmt: skip
#: A branch with more commits is squashed instead of rebased.
_MOST_COMMITS = 100
_UNRELATED = "--allow-unrelated-histories"
_MERGES = "refs/caloron/merges"
_KNOWN_MERGES = 64


@dataclass(frozen=True)
class Merged:
    """A merge commit of two commits, not yet on any branch."""

    commit: str
    tree: str


@dataclass(frozen=True)
class Conflict:
    """The files that two commits change in ways that cannot be combined."""

    files: tuple[str, ...]


class Mirror(Repository):
    """A bare repository of ours that follows the project's forge."""

    def __init__(self, path: Path, remote: Remote, main: str = "main") -> None:
        super().__init__(path)
        self.remote = remote
        self.main = main
        #: The last merges: one is made for its verification, for its push and for its record.
        self._merges: dict[tuple[object, ...], Merged | Conflict] = {}
        #: Only for a forge on this disk.
        self._forge = ObjectReader(Path(remote.url))

    def close(self) -> None:
        super().close()
        self._forge.close()

    def ensure(self) -> None:
        """Create the repository, or complete one whose creation was interrupted."""
        config = self.path / "config"
        if config.exists() and "pruneExpire" in config.read_text("utf-8", "replace"):
            self._refuse_lost_objects()
            return
        self.path.mkdir(parents=True, exist_ok=True)
        # Root's agents have user ids of their own and read it as others, whatever root's umask.
        shared = ("--shared=0644",) if os.geteuid() == 0 else ()
        for command in (
            ("init", "--quiet", "--bare", "--template=", *shared, "."),
            ("config", "gc.auto", "0"),
            ("config", "gc.pruneExpire", "never"),
        ):
            retry_on_lock(self.path, partial(self.git, *command))

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
        """The main of a forge on this disk if we have it too, perhaps by merging; else empty."""
        if not Path(self.remote.url, "refs").is_dir():
            return ""
        ref = f"refs/heads/{self.main}"
        try:
            theirs, ours = self._forge.info(ref), self.objects.info(ref)
        except GitError as error:
            # The fetch reports what is wrong.
            log.debug("a main branch cannot be read", error=error)
            return ""
        if theirs is None or theirs == ours:
            return theirs.id if theirs else ""
        # A ref proves that the whole history of the commit is here.
        if self.objects.info(f"{_MERGES}/{theirs.id}") != theirs:
            return ""
        self.keep(ref, theirs.id)
        return theirs.id

    def newest_main(self) -> str:
        """The commit of the main branch that was fetched last."""
        return self.resolve(f"refs/heads/{self.main}")

    def fetch_branch(self, branch: str) -> str | None:
        """The newest commit of a branch on the forge, or None if it is not there."""
        ref = f"refs/remotes/forge/{branch}"
        return self.resolve(ref) if self._fetch(f"refs/heads/{branch}", ref) else None

    def fetch_head(self, head: str, branch: str, pull: int | None) -> None:
        """Fetch a commit from its branch or, if it is in a fork, from its pull request."""
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
        identity: tuple[str, str] = IDENTITY,
        style: MergeStyle = "merge",
    ) -> Merged | Conflict:
        """Merge `head` into `base`; the same commits, message and style give the same commit.

        The files are the same in every style. A rebase whose commits do not apply one by one, or
        lead to other files, becomes a squash.
        """
        asked = (base, head, message, identity, style)
        if asked not in self._merges:
            made = self._make_merge(base, head, message, identity, style)
            self._merges = dict([*self._merges.items(), (asked, made)][-_KNOWN_MERGES:])
            return made
        return self._merges[asked]

    def _make_merge(
        self, base: str, head: str, message: str, identity: tuple[str, str], style: MergeStyle
    ) -> Merged | Conflict:
        tree, conflicts = self.merge_tree(base, head, _UNRELATED)
        if conflicts is not None:
            return Conflict(conflicts)
        commit = self._rebased(base, head, tree) if style == "rebase" else ""
        if not commit:
            parents = (base, head) if style == "merge" else (base,)
            author = "" if style == "merge" else head
            commit = self._commit(tree, parents, message, identity, author=author)
        self.keep(f"{_MERGES}/{commit}", commit)
        return Merged(commit, tree)

    def _rebased(self, base: str, head: str, tree: str) -> str:
        """Apply the commits of `head` to `base` one by one; empty if they do not lead to `tree`."""
        listed = self.git("rev-list", "--reverse", "--topo-order", "--no-merges", head, f"^{base}")
        commits, tip = listed.split(), base
        if not commits or len(commits) > _MOST_COMMITS:
            return ""
        if self.merge_base(base, head) == base and self.commits_ahead(base, head) == len(commits):
            return head
        for commit in commits:
            parents = self.parents(commit)
            if not parents:
                return ""
            # With this parent, what is merged is the change of this one commit.
            onto = self._commit(self.tree(tip), parents, "Rebase", IDENTITY)
            merged, conflicts = self.merge_tree(onto, commit)
            if conflicts is not None:
                return ""
            if merged != self.tree(tip):
                message = self.git("log", "-1", "--format=%B", commit)
                tip = self._commit(merged, (tip,), message, IDENTITY, author=commit)
        return tip if self.tree(tip) == tree and tip != base else ""

    def brings_nothing(self, base: str, head: str) -> bool:
        """Whether `base` would be the same with `head` merged into it."""
        tree, conflicts = self.merge_tree(base, head, _UNRELATED)
        return conflicts is None and tree == self.tree(base)

    def _commit(
        self,
        tree: str,
        parents: tuple[str, ...],
        message: str,
        identity: tuple[str, str],
        *,
        author: str = "",
    ) -> str:
        """Create a commit that is the same whenever and however often it is created.

        `author`: the commit whose author it gets, with the date.
        """
        related = (*parents, author) if author else parents
        times = self.git("log", "--no-walk", "--format=%ct", *related, "--").split()
        date = f"@{max(map(int, times))} +0000"
        environment = git_environment(identity)
        environment |= {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        if author:
            form = "--format=%an%x00%ae%x00%ad"
            name, email, when = self.git("log", "-1", "--date=raw", form, author).split("\0")
            environment |= {
                "GIT_AUTHOR_NAME": name,
                "GIT_AUTHOR_EMAIL": email,
                "GIT_AUTHOR_DATE": when,
            }
        return self.commit_tree(tree, parents, message, environment)

    def check_push_access(self, commit: str) -> None:
        """Check with `git push --dry-run`; `GitError` if access is denied."""
        refspec = f"{commit}:refs/heads/caloron/is-anybody-let-in"
        git_remote(self.path, self.remote, "push", "--quiet", "--dry-run", refspec)

    def same_tree_as(self, commit: str, parent: str, message: str) -> str:
        """Create a commit on top of `parent` whose files are those of `commit`."""
        return self.commit_on(self.tree(commit), parent, message)

    def commit_on(self, tree: str, parent: str, message: str) -> str:
        """Create a commit with these files on top of another one."""
        revert = self._commit(tree, (parent,), message, IDENTITY)
        self.keep(f"refs/caloron/reverts/{revert}", revert)
        return revert

    def _fetch(self, source: str, target: str) -> bool:
        """Fetch one ref, forced; False if the forge does not have it."""
        try:
            retry_on_lock(
                self.path,
                lambda: git_remote(self.path, self.remote, *_FETCH, f"+{source}:{target}"),
            )
        except GitError as error:
            if "couldn't find remote ref" in error.stderr:
                return False
            raise
        return True
