"""Our own clean repository of a project: what we fetch, compare, merge and push from.

No agent can write to it. Nothing in it is ever pruned, because workspaces borrow its objects.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from caloron.errors import CaloronError, NotFound
from caloron.git.command import (
    GitError,
    git,
    git_argv,
    git_environment,
    git_process,
    git_remote,
)
from caloron.ports import Remote

T = TypeVar("T")

CALORON_IDENTITY = ("Caloron", "caloron@localhost")

_LOCKED = ("cannot lock ref", "Unable to create", "could not lock config file")
_LOCK_FILE = re.compile(r"Unable to create '(.+\.lock)': File exists")
_LOCK_TRIES = 40
_LOCK_PAUSE_S = 0.025
#: Our git commands hold a lock for milliseconds: an old one was left by a machine that went down.
_LOCK_ABANDONED_S = 60.0

#: Git itself only warns of these names in a tree; no honest commit has one.
_NAMES = ("hasDot", "hasDotdot", "hasDotgit", "emptyName", "fullPathname")
_STRICT = "--strict=" + ",".join(f"{name}=error" for name in _NAMES)
_BUNDLE_HEADER_BYTES = 1 << 16
_FETCH = (
    "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules",
    # A user's repository may be shallow, and so is its forge then.
    "--update-shallow",
)  # fmt: skip


class BundleRefused(CaloronError):
    """Commits that an agent handed over are too large or not sound; nothing was taken."""


@dataclass(frozen=True)
class Merged:
    """A merge commit of two commits, not yet on any branch."""

    commit: str
    tree: str


@dataclass(frozen=True)
class Conflict:
    """The files that two commits change in ways that cannot be combined."""

    files: tuple[str, ...]


def shown(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of files as text: git allows bytes that are none, and we carry those as surrogates."""
    return tuple(
        name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        for name in names
    )


@dataclass(frozen=True)
class Size:
    """How much a change changes."""

    files: int
    added: int
    removed: int


class Mirror:
    """A bare repository of ours that follows the project's forge."""

    def __init__(self, path: Path, remote: Remote, main: str = "main") -> None:
        self.path = path
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
        _patiently(lambda: self._git("init", "--quiet", "--bare", "--template=", *shared, "."))
        _patiently(lambda: self._git("config", "gc.auto", "0"))
        _patiently(lambda: self._git("config", "gc.pruneExpire", "never"))

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

    def parents(self, commit: str) -> tuple[str, ...]:
        return tuple(self._git("show", "--no-patch", "--format=%P", commit).split())

    def roots(self, commit: str) -> tuple[str, ...]:
        """The commits that its history began with; none where there is no such commit."""
        try:
            return tuple(self._git("rev-list", "--max-parents=0", commit, "--").split())
        except GitError:
            return ()

    def subject(self, commit: str) -> str:
        """The first line of a commit's message."""
        return self._git("show", "--no-patch", "--format=%s", commit)

    def diff(self, base: str, head: str, limit: int = 200_000) -> str:
        """What `head` changed since it left `base`, with the middle of a long one left out."""
        related = git_process(self.path, "merge-base", base, head).returncode == 0
        range_ = f"{base}...{head}" if related else f"{base}..{head}"
        options = ("--no-color", "--no-ext-diff", "--no-textconv", "--find-renames")
        argv = git_argv(self.path, ("-c", "core.quotePath=false", "diff", *options, range_, "--"))
        with subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=git_environment(),
            process_group=0,
        ) as process:
            assert process.stdout is not None
            text = _clipped(process.stdout, limit)
        if process.returncode != 0:
            raise GitError(("diff", range_), process.returncode, "is one of the commits missing?")
        return text

    def size(self, base: str, head: str) -> Size:
        """How much `head` changed since it left `base`; lines of binary files do not count."""
        options = ("--no-ext-diff", "--no-textconv", "--no-renames", "--numstat", "-z")
        listed = self._git("diff", *options, "--merge-base", base, head, "--")
        rows = [line.split("\t")[:2] for line in listed.split("\0") if line]
        return Size(
            len(rows),
            sum(int(added) for added, _ in rows if added != "-"),
            sum(int(removed) for _, removed in rows if removed != "-"),
        )

    def files(self, commit: str) -> dict[str, str]:
        """The files of a commit with git's names of their content; submodules among them."""
        listed = self._git("ls-tree", "-r", "-z", "--full-tree", commit)
        entries = (line.partition("\t") for line in listed.split("\0") if line)
        return {path: about.split()[2] for about, _, path in entries}

    def log(self, commit: str, count: int) -> list[list[str]]:
        """The last commits: abbreviated id, first line, author and day of each."""
        form = "--format=%h%x00%s%x00%an%x00%as"
        lines = self._git("log", f"-{count}", "--abbrev=8", form, commit).splitlines()
        return [line.split("\0") for line in lines]

    def submodules(self, commit: str) -> list[str]:
        listed = self._git("ls-tree", "-r", "-z", "--full-tree", commit)
        entries = (line.partition("\t") for line in listed.split("\0") if line)
        return [path for about, _, path in entries if about.startswith("160000")]

    def read(self, commit: str, path: str, limit: int = 1 << 20) -> str:
        """The beginning of a file of a commit; empty if there is none."""
        done = git_process(self.path, "cat-file", "blob", f"{commit}:{path}")
        return done.stdout[:limit].decode("utf-8", "replace") if done.returncode == 0 else ""

    def newest(self, prefix: str) -> str:
        """The commit of the ref below `prefix` with the highest number; empty if there is none."""
        listed = self._git("for-each-ref", "--format=%(refname) %(objectname)", prefix)
        refs = [line.split() for line in listed.splitlines()]
        numbered = [(int(name.rpartition("/")[2]), commit) for name, commit in refs]
        return max(numbered, default=(0, ""))[1]

    def merge_base(self, a: str, b: str) -> str:
        """The newest commit that both have; empty if there is none."""
        return git(self.path, "merge-base", a, b, check=False)

    def ahead(self, base: str, head: str) -> int:
        """How many commits `head` has that `base` has not."""
        return int(self._git("rev-list", "--count", f"{base}..{head}"))

    def is_ancestor(self, a: str, b: str) -> bool:
        """Whether everything in `a` is in `b`."""
        done = git_process(self.path, "merge-base", "--is-ancestor", a, b)
        if done.returncode not in (0, 1):
            raise GitError(
                ("merge-base", "--is-ancestor", a, b),
                done.returncode,
                done.stderr.decode("utf-8", "replace"),
            )
        return done.returncode == 0

    def tree(self, commit: str) -> str:
        return self._git("rev-parse", "--verify", f"{commit}^{{tree}}")

    def resolve(self, name: str) -> str:
        """The commit that a ref or an abbreviated id stands for."""
        return self._git("rev-parse", "--verify", f"{name}^{{commit}}")

    def has(self, commit: str) -> bool:
        return git_process(self.path, "cat-file", "-e", f"{commit}^{{commit}}").returncode == 0

    def keep(self, ref: str, commit: str) -> None:
        """Give a commit a name, so that it can be found and is never lost."""
        _patiently(lambda: self._git("update-ref", ref, commit))

    def import_bundle(self, path: Path, ref: str, cap_bytes: int) -> str:
        """Take the HEAD of a bundle in under `ref`, after checking every object in it."""
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise BundleRefused(f"{path} is not a file")
        if status.st_size > cap_bytes:
            raise BundleRefused(
                f"the commits are {status.st_size} bytes, more than the {cap_bytes} allowed",
                hint="keep build results and large data out of the commits",
            )
        with path.open("rb", buffering=0) as file:
            head = _skip_header(file)
            # Not `git fetch`: it takes a bundle's objects unchecked before git 2.46.
            done = subprocess.run(
                git_argv(self.path, ("index-pack", "--stdin", "--fix-thin", _STRICT)),
                stdin=file,
                capture_output=True,
                env=git_environment(),
                check=False,
                process_group=0,
            )
        if done.returncode != 0 or not self.has(head):
            why = done.stderr.decode("utf-8", "replace").strip()
            raise BundleRefused(f"git refused the commits: {why or 'HEAD is not among them'}")
        self.keep(ref, head)
        return head

    def _fetch(self, source: str, target: str) -> bool:
        """Fetch one ref, forced; False if the forge does not have it."""
        try:
            _patiently(lambda: git_remote(self.path, self.remote, *_FETCH, f"+{source}:{target}"))
        except GitError as error:
            if "couldn't find remote ref" in error.stderr:
                return False
            raise
        return True

    def _git(self, *args: str) -> str:
        return git(self.path, *args)


def _patiently(command: Callable[[], T]) -> T:
    """Run a git command again while another one holds the lock that it needs."""
    for _ in range(_LOCK_TRIES):
        try:
            return command()
        except GitError as error:
            if not any(text in error.stderr for text in _LOCKED):
                raise
            _remove_abandoned_lock(error.stderr)
            time.sleep(_LOCK_PAUSE_S)
    return command()


def _remove_abandoned_lock(stderr: str) -> None:
    found = _LOCK_FILE.search(stderr)
    if found is None:
        return
    lock = Path(found[1])
    try:
        if time.time() - lock.stat().st_mtime > _LOCK_ABANDONED_S:
            lock.unlink()
    except FileNotFoundError:
        return


def _skip_header(bundle: IO[bytes]) -> str:
    """Read a bundle up to its objects; the commit that it calls HEAD."""
    start = bundle.read(_BUNDLE_HEADER_BYTES)
    end = start.find(b"\n\n")
    lines = start[:end].decode("utf-8", "replace").split("\n")
    heads = [line[:-5] for line in lines[1:] if line.endswith(" HEAD") and line[0] not in "-@"]
    if end < 0 or not lines[0].endswith(" git bundle") or len(heads) != 1:
        raise BundleRefused("what was handed over is not a bundle with one HEAD")
    if not re.fullmatch(r"[0-9a-f]{40,64}", heads[0]):
        raise BundleRefused(f"the bundle's HEAD is not a commit id: {heads[0]}")
    bundle.seek(end + 2)
    return heads[0]


def _loose_ref(repository: Path, ref: str) -> str:
    """The value of a ref that stands in a file of its own; empty if git has to be asked."""
    try:
        value = (repository / ref).read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
    return "" if value.startswith("ref:") else value


def _clipped(stream: IO[bytes], limit: int) -> str:
    """The text of a stream; of a long one its first and its last half of `limit` bytes."""
    head = stream.read(limit)
    tail = b""
    total = len(head)
    while chunk := stream.read(1 << 20):
        total += len(chunk)
        tail = (tail + chunk)[-(limit // 2) :]
    if total <= limit:
        return head.decode("utf-8", "replace")
    tail = (head + tail)[-(limit // 2) :]
    head = head[: limit // 2]
    omitted = total - len(head) - len(tail)
    note = f"\n[... {omitted} bytes of this diff left out ...]\n"
    return head.decode("utf-8", "replace") + note + tail.decode("utf-8", "replace")
