"""What an agent and all its children use together: the limits that the kernel keeps only for each.

Standard library only, because the shim runs on it.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable

_LEAST_PAUSE_S = 1.0
#: Looking takes at most this part of the time: counting a large workspace is not free.
_SHARE = 0.04
_PAGE = os.sysconf("SC_PAGE_SIZE")


class _TooDeep(Exception):
    """A folder that has no path."""


class Watch:
    """Looks at a family of processes and at the folders they write to, now and then."""

    def __init__(self, *, memory_mb: int, processes: int, disk_mb: int, folders: list[str]) -> None:
        self._memory_mb = memory_mb
        self._processes = processes
        self._disk_mb = disk_mb
        self._folders = folders
        self.due_at = 0.0

    def look(self, family: Iterable[int]) -> str:
        """Which limit the family is over, in one line; empty: none."""
        began = time.monotonic()
        over = self._over(list(family))
        now = time.monotonic()
        self.due_at = now + max(_LEAST_PAUSE_S, (now - began) / _SHARE)
        return over

    def _over(self, family: list[int]) -> str:
        if len(family) > self._processes:
            return f"{len(family)} processes, of {self._processes} allowed"
        nameless_memory, nameless_disk = _nameless(family)
        memory = (sum(map(_own_memory, family)) + nameless_memory) >> 20
        if memory > self._memory_mb:
            return f"{memory} MB of memory, of {self._memory_mb} allowed"
        try:
            disk = (sum(map(_size, self._folders)) + nameless_disk) >> 20
        except _TooDeep:
            return "folders in folders, too deep to be looked at"
        if disk > self._disk_mb:
            return f"{disk} MB on disk, of {self._disk_mb} allowed"
        return ""


def _own_memory(pid: int) -> int:
    """Bytes that a process shares with nobody; forks that only look at the same pages are cheap."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123
            fields = file.read().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * _PAGE if len(fields) > 2 else 0


def _nameless(family: list[int]) -> tuple[int, int]:
    """Bytes in memory and on disk of files that are open and in no folder."""
    memory, disk = 0, 0
    known: set[tuple[int, int]] = set()
    for pid in family:
        for link in _open_files(pid):
            try:
                status = os.stat(link)  # noqa: PTH116
                same = status.st_dev, status.st_ino
                if status.st_nlink or not stat.S_ISREG(status.st_mode) or same in known:
                    continue
                known.add(same)
                if os.readlink(link).startswith("/memfd:"):  # noqa: PTH115
                    memory += status.st_blocks * 512
                else:
                    disk += status.st_blocks * 512
            except OSError:
                # It was closed while we looked.
                continue
    return memory, disk


def _open_files(pid: int) -> list[str]:
    try:
        return [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]  # noqa: PTH208
    except OSError:
        return []


def _size(folder: str) -> int:
    """Bytes that a folder takes on disk; what vanishes while we look takes none."""
    total = 0
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        total += _blocks(entry)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                # Nobody could say any more how much there is.
                raise _TooDeep from error
    return total


def _blocks(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except OSError:
        return 0
