"""Runs a confined command to its end, whatever it does: what it prints and how long it takes.

For commands of ours in a place where an agent has been: a filter that was planted there may wait
for ever, or print without end.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import IO, NamedTuple

from caloron.agents.confined import as_argv
from caloron.agents.processes import descendants, look
from caloron.git.bundle import HandOverCancelled, never
from caloron.ports import Confined

_CHUNK = 1 << 16
_KEPT = 1 << 20
_LOOK_S = 1.0
#: A stop that cancels a command does not wait long for that.
_GLANCE_S = 0.2
#: Waiting for the disk is work too.
_AT_WORK = "RD"


class Printed(NamedTuple):
    """How a command ended, and the beginnings of what it printed."""

    code: int
    out: bytes
    err: bytes


class TooMuch(Exception):
    """A command printed more than is allowed."""


def run_bounded(
    confined: Confined,
    stdin: bytes,
    *,
    longest_s: float,
    idle_s: float,
    out: IO[bytes] | None = None,
    cap_bytes: int = 0,
    cancelled: Callable[[], bool] = never,
) -> Printed:
    """Run a command; `TimeoutError` once it takes too long, or has done nothing for a while.

    `HandOverCancelled` once `cancelled` says so.
    With `out`, all that it prints goes there; `TooMuch` if that is more than `cap_bytes`.
    """
    with tempfile.TemporaryFile() as given:
        given.write(stdin)
        given.seek(0)
        process = subprocess.Popen(
            as_argv(confined),
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=confined.env,
            cwd=confined.cwd,
            process_group=0,
        )
    with process:
        try:
            patience = _Patience(process.pid, longest_s, idle_s, cancelled)
            printed, complaint = _listen(process, patience, out, cap_bytes)
        finally:
            if process.returncode is None:
                # Not only the leader: its children may hold our pipes open and never end.
                os.killpg(process.pid, signal.SIGKILL)
    return Printed(process.returncode, printed, complaint)


def _listen(
    process: subprocess.Popen[bytes], patience: _Patience, into: IO[bytes] | None, cap_bytes: int
) -> tuple[bytes, bytes]:
    """Take what is printed until both streams are closed, and keep the beginnings."""
    assert process.stdout is not None
    assert process.stderr is not None
    kept = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as selector:
        for handle in kept:
            selector.register(handle, selectors.EVENT_READ)
        while selector.get_map():
            patience.check()
            for key, _ in selector.select(_GLANCE_S):
                data = os.read(key.fd, _CHUNK)
                if data and into is not None and key.fd == process.stdout.fileno():
                    if into.tell() + len(data) > cap_bytes:
                        raise TooMuch
                    into.write(data)
                elif data:
                    kept[key.fd] += data[: _KEPT - len(kept[key.fd])]
                else:
                    selector.unregister(key.fd)
        process.wait()
    out, err = kept.values()
    return bytes(out), bytes(err)


class _Patience:
    """How long somebody may go on, and how long without doing anything."""

    def __init__(
        self, pid: int, longest_s: float, idle_s: float, cancelled: Callable[[], bool]
    ) -> None:
        self._pid = pid
        self._cancelled = cancelled
        self._idle_s = idle_s
        self._used = -1
        self._looked_at = self._busy_at = time.monotonic()
        self._end_at = self._busy_at + longest_s

    def check(self) -> None:
        if self._cancelled():
            raise HandOverCancelled
        now = time.monotonic()
        if now > self._end_at:
            raise TimeoutError
        if now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        leader = look(self._pid)
        family = [*descendants(self._pid).values(), *([leader] if leader else [])]
        used = sum(process.ticks for process in family)
        if used != self._used or any(process.state in _AT_WORK for process in family):
            self._used, self._busy_at = used, now
        elif now - self._busy_at > self._idle_s:
            raise TimeoutError
