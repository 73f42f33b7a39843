"""Runs one confined process while the caller waits: what it prints is kept, all of it ends.

It is started and waited for in one thread, because a sandbox dies with the thread that started it.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

from caloron.agents.processes import descendants, end_family, sidecar_environment
from caloron.agents.transcript import Transcript
from caloron.agents.watch import Watch
from caloron.ports import Confined
from caloron.store.redact import RedactingStream, Redactor

_CHUNK = 1 << 16
_LOOK_UP_S = 1.0
_CANCELLED = "the sprint was stopped"
_LOG_CAP = 16 << 20
# Python ignores them, and a child would inherit that.
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)


class Ended(NamedTuple):
    """How a process ended."""

    exit_code: int
    timed_out: bool
    #: The limit that it was over, in one line.
    over: str


def run_confined(
    confined: Confined,
    log: Path,
    *,
    limit_s: float,
    watch: Watch | None = None,
    redactor: Redactor | None = None,
    stdin: Path = Path(os.devnull),
    cancelled: Event | None = None,
) -> Ended:
    """Run a process to its end, or to its limits; its output goes to the log without secrets."""
    with ExitStack() as ending:
        output, end = os.pipe()
        ending.callback(os.close, output)
        ending.enter_context(os.fdopen(end, "wb"))
        kept = _Kept(output, log, redactor or Redactor())
        ending.callback(kept.finish)
        if confined.beside:
            beside = _spawn(confined.beside, sidecar_environment(), end, Path(os.devnull))
            ending.callback(_end, beside)
        argv = ("env", "-C", str(confined.cwd), *confined.argv)
        pid = _spawn(argv, confined.env, end, stdin, confined.files)
        process = _Waited(pid)
        ending.callback(process.end)
        if watch:
            watch.follow(pid, confined.argv)
        timed_out, over = _attend(process, kept, limit_s, watch, cancelled or Event())
        process.end()
    return Ended(process.exit_code, timed_out, over)


def _spawn(
    argv: tuple[str, ...],
    env: dict[str, str],
    output: int,
    stdin: Path,
    files: dict[int, Path] | None = None,
) -> int:
    # Nothing of ours runs between fork and exec: other threads may hold any lock.
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_DUP2, output, 1),
        (os.POSIX_SPAWN_DUP2, output, 2),
        (os.POSIX_SPAWN_OPEN, 0, str(stdin), os.O_RDONLY, 0),
    ]
    for handle, path in (files or {}).items():
        actions.append((os.POSIX_SPAWN_OPEN, handle, str(path), os.O_RDONLY, 0))
    return os.posix_spawnp(
        argv[0], argv, env, file_actions=actions, setsid=True, setsigdef=_IGNORED
    )


class _Waited:
    """A child of ours, until it and its family have ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.handle = os.pidfd_open(pid)
        self.exit_code = -1

    def end(self) -> None:
        """End everybody of its family; its own id stays taken until it has been waited for."""
        if self.handle < 0:
            return
        end_family(self.pid)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.exit_code = code if code >= 0 else 128 - code
        os.close(self.handle)
        self.handle = -1


def _end(pid: int) -> None:
    end_family(pid)
    os.waitpid(pid, 0)


class _Kept:
    """What comes out of a pipe, on its way to the log."""

    def __init__(self, pipe: int, log: Path, redactor: Redactor) -> None:
        os.set_blocking(pipe, False)
        self.pipe = pipe
        self._transcript = Transcript(log, _LOG_CAP)
        self._stream = RedactingStream(redactor)

    def take(self) -> None:
        """Take what is there now."""
        try:
            self._transcript.add(self._stream.feed(os.read(self.pipe, _CHUNK)))
        except BlockingIOError:
            return

    def finish(self) -> None:
        # A pipe holds a megabyte at most; who still fills it is not ours.
        for _ in range((1 << 20) // _CHUNK):
            self.take()
        self._transcript.add(self._stream.finish())
        self._transcript.finish()


def _attend(
    process: _Waited, kept: _Kept, limit_s: float, watch: Watch | None, cancelled: Event
) -> tuple[bool, str]:
    """Until the process has ended or must: whether its time was up, and the limit it was over."""
    limit_at = time.monotonic() + limit_s
    poll = select.poll()
    poll.register(process.handle, select.POLLIN)
    poll.register(kept.pipe, select.POLLIN)
    if watch:
        poll.register(watch.alarm, select.POLLIN)
    while True:
        now = time.monotonic()
        if now >= limit_at:
            return True, ""
        if cancelled.is_set():
            return False, _CANCELLED
        if watch and now >= watch.due_at and (over := watch.look(_family(process.pid))):
            return False, over
        due = min(limit_at, watch.due_at if watch else limit_at, now + _LOOK_UP_S)
        ready = dict(poll.poll(max(due - time.monotonic(), 0) * 1000 + 1))
        if kept.pipe in ready:
            kept.take()
        over = watch.ended_by_kernel() if watch else ""
        if process.handle in ready:
            return False, over


def _family(pid: int) -> list[int]:
    return [pid, *descendants(pid)]
