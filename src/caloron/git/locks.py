"""Git's lock files: waited for, and removed where no process holds them any more."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from caloron.git.command import GitError
from caloron.store import log

T = TypeVar("T")

_LOCKED = ("cannot lock ref", "Unable to create", "could not lock config file")
#: Lines of git's stderr whose text was written by the other side.
_SERVER_SENT = re.compile(r"^.*\bremote(?: error)?:.*$", re.MULTILINE)
_LOCK_TRIES = 40
_LOCK_PAUSE_S = 0.025
#: Our git commands hold a lock for milliseconds: an old one was left by a machine that went down.
_LOCK_ABANDONED_S = 60.0


def patiently(repository: Path, command: Callable[[], T]) -> T:
    """Run a git command of a bare repository again while another one holds the lock it needs."""
    for attempt in range(_LOCK_TRIES):
        try:
            return command()
        except GitError as error:
            own = _SERVER_SENT.sub("", error.stderr)
            if not any(text in own for text in _LOCKED):
                raise
            if attempt == 0:
                log.warning("git is retried: a lock is held", error=error, repository=repository)
            remove_abandoned_locks(repository)
            time.sleep(_LOCK_PAUSE_S)
    return command()


def remove_abandoned_locks(repository: Path) -> None:
    """Remove old lock files of this repository.

    They are found in its folders and not in git's message: that also holds text of the server,
    which must never name a file to delete.
    """
    for lock in _locks_in(repository):
        try:
            if time.time() - lock.lstat().st_mtime > _LOCK_ABANDONED_S:
                lock.unlink()
                log.warning("an abandoned lock of git is removed", path=lock)
        except FileNotFoundError:
            continue


def _locks_in(repository: Path) -> Iterator[Path]:
    # Links are not followed: they may lead out of the repository.
    for folder, folders, files in os.walk(repository, followlinks=False):
        if Path(folder) == repository / "objects":
            folders[:] = [name for name in folders if name in ("info", "pack")]
        yield from (Path(folder, name) for name in files if name.endswith(".lock"))
