"""Runs a confined command to its end, whatever it does: what it prints and how long it takes.

For commands of ours in a place where an agent has been: a filter that was planted there may wait
for ever, or print without end.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import tempfile
import time
from typing import NamedTuple

from caloron.agents.confined import as_argv
from caloron.agents.processes import descendants, look
from caloron.ports import Confined

_CHUNK = 1 << 16
_KEPT = 1 << 20
_LOOK_S = 1.0
#: Waiting for the disk is work too.
_AT_WORK = "RD"


class Printed(NamedTuple):
    """How a command ended, and the beginnings of what it printed."""

    code: int
    out: bytes
    err: bytes


def run_bounded(confined: Confined, stdin: bytes, *, longest_s: float, idle_s: float) -> Printed:
    """Run a command; `TimeoutError` once it takes too long, or has done nothing for a while."""
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
            out, err = _listen(process, _Patience(process.pid, longest_s, idle_s))
        finally:
            process.kill()
    return Printed(process.returncode, out, err)


def _listen(process: subprocess.Popen[bytes], patience: _Patience) -> tuple[bytes, bytes]:
    """Take what is printed until both streams are closed, and keep the beginnings."""
    assert process.stdout is not None
    assert process.stderr is not None
    kept = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as selector:
        for handle in kept:
            selector.register(handle, selectors.EVENT_READ)
        while selector.get_map():
            patience.check()
            for key, _ in selector.select(_LOOK_S):
                data = os.read(key.fd, _CHUNK)
                if data:
                    kept[key.fd] += data[: _KEPT - len(kept[key.fd])]
                else:
                    selector.unregister(key.fd)
        process.wait()
    out, err = kept.values()
    return bytes(out), bytes(err)


class _Patience:
    """How long somebody may go on, and how long without doing anything."""

    def __init__(self, pid: int, longest_s: float, idle_s: float) -> None:
        self._pid = pid
        self._idle_s = idle_s
        self._used = -1
        self._looked_at = self._busy_at = time.monotonic()
        self._end_at = self._busy_at + longest_s

    def check(self) -> None:
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
