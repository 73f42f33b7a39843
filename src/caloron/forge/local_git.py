"""The git half of the local forge: refs, pushes and merges of one bare repository."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

from caloron.errors import ForgeError, ForgeUnavailable, MergeConflict
from caloron.git.command import GitError, complaint, git_environment, git_process
from caloron.git.locks import remove_abandoned_locks
from caloron.git.refs import BranchTips

MAIN = "main"
CALORON = ("Caloron", "caloron@localhost")

_MERGE_WAIT_S = 30.0
_LOCKED = b".lock': File exists"
_PASSING = ("File exists", "No space left", "temporarily unavailable", "Cannot allocate memory")
#: A process that git started was killed. A repository that is gone is named before the last line.
_KILLED = re.compile(
    r"died of signal|^Killed$|unexpected disconnect|\Afatal: Could not read from remote",
    re.MULTILINE,
)


@dataclass(frozen=True)
class CommitSeen:
    """Who made a commit, out of what."""

    parents: tuple[str, ...]
    name: str
    email: str


class BareRepository:
    """A bare repository that several processes and plain git commands may use at once."""

    def __init__(self, path: Path, identity: tuple[str, str] = CALORON) -> None:
        self.path = path
        self._environment = git_environment(identity)
        self._tips = BranchTips(path, run)

    def git(self, *args: str, stdin: bytes | None = None, ok: tuple[int, ...] = (0,)) -> str:
        """Run git on exactly this repository, never on one that surrounds it."""
        return _text(self._finish(args, self._process(*args, stdin=stdin), ok))

    def _process(self, *args: str, stdin: bytes | None = None) -> CompletedProcess[bytes]:
        return run(self.path, "--git-dir=.", *args, stdin=stdin, environment=self._environment)

    def _finish(
        self, args: Iterable[str], done: CompletedProcess[bytes], ok: tuple[int, ...] = (0,)
    ) -> bytes:
        if done.returncode not in ok:
            raise git_failure(self.path, args, done)
        return done.stdout

    def tip(self, branch: str) -> str | None:
        return self.tips((branch,)).get(branch)

    def tips(self, branches: Iterable[str]) -> dict[str, str]:
        """The commits of those branches that exist."""
        if not ((self.path / "HEAD").exists() and (self.path / "objects").exists()):
            # `git init` has not run here, or was interrupted.
            return {}
        try:
            commits, damaged = self._tips.read()
        except GitError as error:
            raise failed_git(self.path, "for-each-ref", error.returncode, error.stderr) from error
        except OSError as error:
            raise _unreadable(self.path, error) from error
        wanted = tuple(branches)
        for branch in wanted:
            if branch in damaged:
                raise ForgeError(
                    f"{self.path}: branch {branch} is damaged, its ref names no commit",
                    hint="look with `git fsck`, then push the branch again",
                )
        return {branch: commits[branch] for branch in wanted if branch in commits}

    def push_from(self, source: Path, branch: str, new: str, old: str) -> CompletedProcess[bytes]:
        """Move a branch from `old` to `new`, whose commits are in the repository `source`."""
        ref = f"refs/heads/{branch}"
        return self._freed(
            run(
                source,
                "push",
                "--quiet",
                f"--force-with-lease={ref}:{old}",
                str(self.path),
                f"{new}:{ref}",
                environment=self._environment,
            )
        )

    def _freed(self, done: CompletedProcess[bytes]) -> CompletedProcess[bytes]:
        """Remove the lock that a killed git left, so that the next try succeeds."""
        if done.returncode != 0 and _LOCKED in done.stderr:
            remove_abandoned_locks(self.path)
        return done

    def merge_tree(self, base: str, head: str) -> str:
        """The tree of both merged; `MergeConflict` names the files that need a decision."""
        args = ("merge-tree", "--write-tree", "--name-only", "--no-messages", "-z", base, head)
        done = self._process(*args)
        if done.returncode == 128 and b"unrelated histories" in done.stderr:
            raise MergeConflict(f"{head[:10]} and {base[:10]} share no history")
        tree, *files = _text(self._finish(args, done, (0, 1))).rstrip("\0").split("\0")
        if done.returncode == 1:
            raise MergeConflict(f"{head[:10]} and {base[:10]} both changed {', '.join(files)}")
        return tree

    def commit(self, tree: str, parents: Iterable[str], message: str) -> str:
        named = [option for parent in parents for option in ("-p", parent)]
        return self.git("commit-tree", tree, *named, "-F", "-", stdin=message.encode())

    def move(self, branch: str, new: str, old: str) -> bool:
        """Compare and swap; `old` empty: it must not exist. False if the branch is elsewhere."""
        args = ("update-ref", f"refs/heads/{branch}", new, old or "0" * len(new))
        done = self._freed(self._process(*args))
        if done.returncode == 0:
            return True
        if (self.tip(branch) or "") != old:
            return False
        raise git_failure(self.path, args, done)

    def contains(self, tip: str, commit: str) -> bool:
        """Whether `commit` is `tip` or behind it; a commit that is gone is behind nothing."""
        args = ("merge-base", "--is-ancestor", commit, tip)
        done = self._process(*args)
        self._finish(args, done, (0, 1, 128))
        return done.returncode == 0

    def contained(self, tip: str, commits: Iterable[str]) -> set[str]:
        """Those of the commits that `tip` contains, found with one walk."""
        asked = set(commits)
        if not asked:
            return set()
        ahead = self.git("rev-list", "--ignore-missing", *asked, "--not", tip).split()
        return {c for c in asked.difference(ahead) if self.contains(tip, c)}

    def first_with(self, commit: str, tip: str, base: str) -> str:
        """The commit on the first-parent line from `base` to `tip` that brought `commit` in."""
        line = self.git("rev-list", "--ignore-missing", "--first-parent", tip, "--not", base)
        newest_first = line.split() or [tip]
        low, high = 0, len(newest_first) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.contains(newest_first[middle], commit):
                low = middle
            else:
                high = middle - 1
        return newest_first[low]

    def look(self, commit: str) -> CommitSeen:
        shown = self.git("show", "-s", "--no-show-signature", "--format=%P%n%cn%n%ce", commit)
        parents, name, email = shown.split("\n", 2)
        return CommitSeen(tuple(parents.split()), name, email)

    def diff(self, *revisions: str) -> str:
        return self.git("diff", "--no-color", "--no-ext-diff", "--no-textconv", *revisions, "--")

    @contextmanager
    def merging(self, *, wait: bool = True) -> Iterator[bool]:
        """One merge at a time over all processes; without `wait`, says False if it is taken."""
        try:
            lock = os.open(self.path.with_name("forge.lock"), os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise _unreadable(self.path.with_name("forge.lock"), error) from error
        try:
            deadline = time.monotonic() + (_MERGE_WAIT_S if wait else 0)
            taken = _try_lock(lock)
            while not taken and time.monotonic() < deadline:
                time.sleep(0.02)
                taken = _try_lock(lock)
            if wait and not taken:
                raise ForgeUnavailable(
                    f"{self.path}: another process has been merging for {_MERGE_WAIT_S:.0f} s",
                    hint="let it finish or end it, then try again",
                )
            yield taken
        finally:
            os.close(lock)


def run(
    repository: Path,
    *args: str,
    stdin: bytes | None = None,
    environment: dict[str, str] | None = None,
) -> CompletedProcess[bytes]:
    """Run git, or say why it could not even start."""
    try:
        return git_process(repository, *args, stdin=stdin, environment=environment)
    except FileNotFoundError as error:
        raise ForgeError("git was not found", hint="install git 2.38 or newer") from error
    except OSError as error:
        raise ForgeUnavailable(f"git could not be started: {error.strerror}") from error


def git_failure(where: Path, args: Iterable[str], done: CompletedProcess[bytes]) -> ForgeError:
    """A failed git command as an error of the forge, retryable if the cause may pass."""
    said = done.stderr.decode("utf-8", "replace")
    return failed_git(where, next(iter(args)), done.returncode, said)


def failed_git(where: Path, command: str, code: int, stderr: str) -> ForgeError:
    said = complaint(stderr)
    words = f"{where}: git {command} failed ({code}): {said}"
    if "No space left" in said:
        return ForgeUnavailable(words, hint="free some space on that disk; nothing was changed")
    if code < 0 or _KILLED.search(said):
        return ForgeUnavailable(words, hint="a git process was killed; it is tried again")
    if any(sign in said for sign in _PASSING):
        return ForgeUnavailable(
            words, hint="another git may be at work; if none is, remove the .lock file it names"
        )
    return ForgeError(words)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unreadable(path: Path, error: OSError) -> ForgeUnavailable:
    return ForgeUnavailable(
        f"cannot open {path}: {error.strerror}", hint="make the project directory yours"
    )


def _text(out: bytes) -> str:
    return out.decode("utf-8", "replace").rstrip("\n")
