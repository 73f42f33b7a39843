"""Git's lock files: waited for, and removed where nobody holds them any more."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from caloron.git.command import GitError

T = TypeVar("T")

_LOCKED = ("cannot lock ref", "Unable to create", "could not lock config file")
_LOCK_FILE = re.compile(r"Unable to create '(.+\.lock)': File exists")
_LOCK_TRIES = 40
_LOCK_PAUSE_S = 0.025
#: Our git commands hold a lock for milliseconds: an old one was left by a machine that went down.
_LOCK_ABANDONED_S = 60.0


def patiently(command: Callable[[], T]) -> T:
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
