"""Wakes the engine at once when somebody else wrote something, instead of at its next look."""

from __future__ import annotations

import errno
import os
import select
import stat
from contextlib import suppress
from pathlib import Path

_NOBODY_LISTENS = (errno.ENXIO, errno.ENOENT, errno.EAGAIN)


class Wake:
    """A FIFO beside the ledger: whoever appends a fact pokes it, the engine waits on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def create(self) -> None:
        """Make the FIFO and listen on it; the engine's side."""
        if self._fd is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and not stat.S_ISFIFO(self.path.stat().st_mode):
            self.path.unlink()
        with suppress(FileExistsError):
            os.mkfifo(self.path, 0o600)
        # Open for both, so that the FIFO never reports its end when a poker closes.
        self._fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def poke(self) -> None:
        """Wake whoever waits; when nobody does, nothing happens."""
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_APPEND)
        except OSError as error:
            if error.errno in _NOBODY_LISTENS:
                return
            raise
        try:
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.write(fd, b".")
        except OSError as error:
            # A full FIFO wakes its reader just as well.
            if error.errno not in (errno.EAGAIN, errno.EPIPE):
                raise
        finally:
            os.close(fd)

    def wait(self, timeout: float | None) -> bool:
        """Sleep until poked (True) or until `timeout` seconds have passed (False)."""
        if self._fd is None:
            raise RuntimeError(f"{self.path}: create() comes before wait()")
        ready, _, _ = select.select([self._fd], [], [], timeout)
        if ready:
            self._drain(self._fd)
        return bool(ready)

    def _drain(self, fd: int) -> None:
        try:
            while len(os.read(fd, 4096)) == 4096:
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
