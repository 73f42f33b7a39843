"""One engine per project: who holds it, proved by a lock that dies with its process."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from caloron.errors import HeldByAnother, StoreError
from caloron.store.lock import boot_id

# Somebody who asks `holder` takes the lock for an instant: one refusal proves nothing yet.
_TRIES = 5
_BETWEEN_TRIES_S = 0.05


class EngineLock:
    """The right to run the engine of a project, until released or until this process dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        return self._fd is not None

    def acquire(self, sprint: str = "") -> None:
        """Take the lock, or raise `HeldByAnother` with the holder's name."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(
                f"cannot open {self.path}: {error.strerror}",
                hint="make the file and its directory writable for you",
            ) from error
        if not _take(fd):
            try:
                raise _held_by(_read(fd), self.path)
            finally:
                os.close(fd)
        self._fd = fd
        self.describe(sprint)

    def describe(self, sprint: str) -> None:
        """Write down what the holder works on, for whoever is refused."""
        if self._fd is None:
            raise RuntimeError(f"{self.path} is not held by this process")
        # Whoever only asks for the holder does not need it.
        from datetime import UTC, datetime

        content = json.dumps(
            {
                "pid": os.getpid(),
                "host": os.uname().nodename,
                "boot_id": boot_id(),
                "sprint": sprint,
                "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            }
        ).encode()
        try:
            os.pwrite(self._fd, content, 0)
            os.ftruncate(self._fd, len(content))
        except OSError as error:
            raise StoreError(
                f"cannot write {self.path}: {error.strerror}", hint="free some space on that disk"
            ) from error

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> EngineLock:
        if not self.held:
            self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def holder(path: Path) -> dict[str, Any] | None:
    """Who holds the lock now; what a dead engine wrote into the file does not count."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read(fd)
        return None
    finally:
        os.close(fd)


def _take(fd: int) -> bool:
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if left:
                time.sleep(_BETWEEN_TRIES_S)
        else:
            return True
    return False


def _read(fd: int) -> dict[str, Any]:
    """What the holder wrote; empty while it is just taking the lock."""
    try:
        content = json.loads(os.pread(fd, 4096, 0))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _held_by(who: dict[str, Any], path: Path) -> HeldByAnother:
    sprint = f", sprint {who['sprint']}" if who.get("sprint") else ""
    return HeldByAnother(
        f"project {path.parent.name!r} is held by process {who.get('pid', '?')} on"
        f" {who.get('host', 'this machine')}{sprint}, since {who.get('started_at', 'just now')}",
        hint=f"wait for it, or stop it: caloron stop --project {path.parent.name}",
    )
