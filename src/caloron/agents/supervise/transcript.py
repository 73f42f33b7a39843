"""The output of a process on disk, without secrets: never more than a cap, in constant memory.

The first half of the cap is kept as it comes; after that a second file is a ring buffer with the
newest half. At the end the two become one file.
"""

from __future__ import annotations

import os
from pathlib import Path

from caloron.store.redact import RedactingStream, Redactor

#: The cap of a log that only people read.
LOG_CAP = 16 << 20

_CHUNK = 1 << 16
_TAIL = 1 << 16


class Transcript:
    """One stream of output that goes to one file."""

    def __init__(self, path: Path, cap: int, redactor: Redactor | None = None) -> None:
        self._stream = RedactingStream(redactor or Redactor())
        self._half = max(cap // 2, 1)
        self._head = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._ring_path = path.with_name(path.name + ".tail")
        self._ring = -1
        self.total = 0
        #: The reason why the rest of the output was not written; empty: it was.
        self.problem = ""

    def add(self, data: bytes) -> None:
        """Take the next output; a full disk ends the transcript but not the agent."""
        self._keep(self._stream.feed(data))

    def _keep(self, data: bytes) -> None:
        if self.problem:
            return
        try:
            self._append(data)
        except OSError as error:
            self.problem = f"its output could not be written: {error.strerror}"

    def _append(self, data: bytes) -> None:
        room = max(self._half - self.total, 0)
        _write_all(self._head, data[:room])
        self.total += min(room, len(data))
        if len(data) > room:
            self._add_to_ring(data[room:])

    def _add_to_ring(self, data: bytes) -> None:
        if self._ring < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._ring = os.open(self._ring_path, flags, 0o600)
        while data:
            at = (self.total - self._half) % self._half
            written = os.pwrite(self._ring, data[: self._half - at], at)
            self.total += written
            data = data[written:]

    def finish(self) -> None:
        """Put head and tail together, durably."""
        self._keep(self._stream.finish())
        try:
            if self._ring >= 0:
                self._append_ring()
                os.close(self._ring)
            os.fsync(self._head)
            os.close(self._head)
            self._ring_path.unlink(missing_ok=True)
        except OSError as error:
            self.problem = f"its output could not be written: {error.strerror}"

    def _append_ring(self) -> None:
        behind = self.total - self._half
        omitted = max(behind - self._half, 0)
        if omitted:
            _write_all(self._head, f"\n[... {omitted} bytes omitted ...]\n".encode())
            start = behind % self._half
            self._copy(start, self._half)
            self._copy(0, start)
        else:
            self._copy(0, behind)

    def _copy(self, start: int, end: int) -> None:
        while start < end:
            data = os.pread(self._ring, min(_CHUNK, end - start), start)
            _write_all(self._head, data)
            start += len(data)


def last_line(path: Path, limit: int = 500) -> str:
    """Return the last line of a file that is not empty, or an empty string."""
    lines = tail(path).splitlines()
    return next((line.strip()[:limit] for line in reversed(lines) if line.strip()), "")


def tail(path: Path) -> str:
    """Return the end of a file as text."""
    with path.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - _TAIL, 0))
        return file.read().decode("utf-8", "replace")


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]
