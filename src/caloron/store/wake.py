"""Wakes the engine when another process has written to the ledger."""

from __future__ import annotations

import errno
import os
import select
import stat
from contextlib import suppress
from pathlib import Path

_NO_READER = (errno.ENXIO, errno.ENOENT, errno.EAGAIN)


class Wake:
    """A FIFO beside the ledger: the engine waits on it, a process with news writes to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def create(self) -> None:
        """Create the FIFO and open it for reading."""
        if self._fd is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and not stat.S_ISFIFO(self.path.stat().st_mode):
            self.path.unlink()
        with suppress(FileExistsError):
            os.mkfifo(self.path, 0o600)
        # Opened for writing too: without a writer, the FIFO would report its end.
        self._fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def poke(self) -> None:
        """Wake the engine, if one waits."""
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_APPEND)
        except OSError as error:
            if error.errno in _NO_READER:
                return
            raise
        try:
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.write(fd, b".")
        except OSError as error:
            # A full FIFO wakes its reader too.
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
