"""The branches of a bare repository, read through git in whatever format it keeps its refs."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import NamedTuple

from caloron.git.command import GitError, git_process

_BROKEN = re.compile(r"broken ref refs/heads/(\S+)")
_HEADS = "refs/heads/"
#: Two changes within a tick of the file system's clock leave the same times.
_CLOCK_TICK_NS = 100_000_000


class Tips(NamedTuple):
    """The commit of each branch, and the branches whose ref is damaged."""

    commits: dict[str, str]
    damaged: frozenset[str]


class _Read(NamedTuple):
    storage: tuple[tuple[str, int, int, int], ...]
    tips: Tips


class BranchTips:
    """Reads the branches again only after the files that hold refs have changed.

    The files tell whether anything changed, in each format of git; git tells what they say. A
    process per poll would cost a hundred times as much.
    """

    def __init__(self, path: Path, run: Callable[..., CompletedProcess[bytes]] = git_process):
        self._path = path
        self._run = run
        self._last: _Read | None = None

    def read(self) -> Tips:
        """The branches as they are now; `GitError` if git cannot read them."""
        now = time.time_ns()
        storage = self._storage()
        last = self._last
        if last is not None and last.storage == storage:
            return last.tips
        tips = self._ask_git()
        settled = all(changed < now - _CLOCK_TICK_NS for _, changed, _, _ in storage)
        self._last = _Read(storage, tips) if settled else None
        return tips

    def _storage(self) -> tuple[tuple[str, int, int, int], ...]:
        """Name, time, inode and size of everything that can hold a ref."""
        found = []
        pending = [str(self._path / name) for name in ("refs", "packed-refs", "reftable")]
        while pending:
            name = pending.pop()
            try:
                seen = os.lstat(name)
                found.append((name, seen.st_mtime_ns, seen.st_ino, seen.st_size))
                if stat.S_ISDIR(seen.st_mode):
                    with os.scandir(name) as entries:
                        pending += [entry.path for entry in entries]
            except (FileNotFoundError, NotADirectoryError):
                # A lock of git that is gone already, or a format without this file.
                continue
        return tuple(sorted(found))

    def _ask_git(self) -> Tips:
        arguments = ("--git-dir=.", "for-each-ref", "--format=%(objectname) %(refname)", _HEADS)
        done = self._run(self._path, *arguments)
        said = done.stderr.decode("utf-8", "replace")
        if done.returncode != 0:
            raise GitError(arguments, done.returncode, said)
        lines = done.stdout.decode("utf-8", "surrogateescape").split("\n")
        pairs = (line.split(" ", 1) for line in lines if line)
        commits = {name.removeprefix(_HEADS): commit for commit, name in pairs}
        return Tips(commits, frozenset(_BROKEN.findall(said)))
