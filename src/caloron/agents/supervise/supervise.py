"""Runs one process to its end: takes its output, keeps its limits, ends everything below it.

Standard library only, because the shim runs on it. A process is started and waited for in one
thread, because a sandbox dies with the thread that started it.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, Protocol

from caloron.agents.supervise.child import Child
from caloron.agents.supervise.processes import Process

if TYPE_CHECKING:
    from caloron.agents.supervise.watch import Watch
    from caloron.ports import SandboxedCommand

_NEVER = float("inf")
_CHUNK = 1 << 16
_KILL_AGAIN_S = 0.2
_DRAIN_S = 0.3
_CANCEL_CHECK_S = 0.2
_IDLE_CHECK_S = 1.0
#: Waiting for the disk is work too.
_AT_WORK = "RD"


class Sink(Protocol):
    """Takes the output of a process."""

    def add(self, data: bytes) -> None: ...

    def finish(self) -> None: ...


class Buffer:
    """Keeps the beginning of a stream in memory."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.data = bytearray()
        self._limit = limit

    def add(self, data: bytes) -> None:
        self.data += data[: self._limit - len(self.data)]

    def finish(self) -> None:
        """Everything is kept already."""


class OutputTooLarge(Exception):
    """A process printed more than is allowed."""


class CappedFile:
    """Writes a stream to a file, and raises `OutputTooLarge` beyond its cap."""

    def __init__(self, file: IO[bytes], cap_bytes: int) -> None:
        self._file = file
        self._room = cap_bytes

    def add(self, data: bytes) -> None:
        self._room -= len(data)
        if self._room < 0:
            raise OutputTooLarge
        self._file.write(data)

    def finish(self) -> None:
        self._file.flush()


class Limits(NamedTuple):
    """The limits of one process."""

    seconds: float
    #: The longest time without any use of the processor or the disk.
    idle_s: float = _NEVER
    #: Watches the resources that all its processes use together.
    watch: Watch | None = None
    #: The time between SIGTERM and SIGKILL; 0: it is killed at once.
    grace_s: float = 0.0


class Ended(NamedTuple):
    """How a process ended."""

    exit_code: int
    timed_out: bool = False
    #: The limit that it exceeded, in one line.
    over: str = ""
    cancelled: bool = False


class Supervision:
    """The event loop around one child process."""

    def __init__(self, child: Child, limits: Limits) -> None:
        self._child = child
        self._limits = limits
        self._selector = selectors.DefaultSelector()
        self._streams: dict[int, Sink] = {}
        self._sinks: list[Sink] = []
        self._pidfd = -1
        self._idle = _IdleTimer(limits.idle_s)
        self._end_at = self._kill_at = _NEVER
        self.exit_code: int | None = None
        self.timed_out = self.stopping = False
        self.over = ""
        #: Output has arrived since this was last set to False.
        self.has_output = False

    def listen(self, handle: int, react: Callable[[], object]) -> None:
        """Call a function whenever a descriptor is readable."""
        self._selector.register(handle, selectors.EVENT_READ, react)

    def take_output(self, handle: int, sink: Sink) -> None:
        os.set_blocking(handle, False)
        self._streams[handle] = sink
        self._sinks.append(sink)
        self.listen(handle, lambda: self._read(handle, sink))

    def begin(self, argv: tuple[str, ...]) -> None:
        """Apply the limits to the child, which runs `argv` from now on."""
        self._pidfd = os.pidfd_open(self._child.pid)
        self.listen(self._pidfd, self._collect)
        if watch := self._limits.watch:
            watch.follow(self._child.pid, argv)
            self.listen(watch.alarm.fileno(), watch.ended_by_kernel)
        self._end_at = time.monotonic() + self._limits.seconds

    def wait(self, tick: Callable[[float], float]) -> None:
        """Wait for the end of the child; `tick` returns the time at which it is called next."""
        while self.exit_code is None:
            now = time.monotonic()
            due = tick(now)
            if not self.stopping:
                due = min(due, self._check_limits(now))
            if now >= self._kill_at:
                self._child.kill()
                self._kill_at = now + _KILL_AGAIN_S
            self._handle_events(min(due, self._kill_at) - time.monotonic())

    def stop(self, grace_s: float | None = None) -> None:
        """End the child: SIGTERM, and SIGKILL after the grace."""
        grace = self._limits.grace_s if grace_s is None else grace_s
        self.stopping = True
        if grace and self._child.process is not None:
            self._child.terminate()
        self._kill_at = time.monotonic() + grace

    def drain(self) -> None:
        """Take the last output, but do not wait for a process that keeps the pipe open."""
        until = time.monotonic() + _DRAIN_S
        while self._streams and (left := until - time.monotonic()) > 0:
            self._handle_events(left)

    def finish(self) -> None:
        """Close the streams once all processes have ended, and let the sinks finish."""
        try:
            self.drain()
        finally:
            for handle in (*self._streams, *((self._pidfd,) if self._pidfd >= 0 else ())):
                self._close(handle)
            self._selector.close()
            for sink in self._sinks:
                sink.finish()

    def _check_limits(self, now: float) -> float:
        """Stop a child that is over a limit; return the time of the next check."""
        watch = self._limits.watch
        if now >= self._end_at or self._idle.is_over(now, self._child.family):
            self.timed_out = True
            self.stop()
        elif watch and now >= watch.due_at:
            self.over = watch.check(self._child.family())
            if self.over:
                # It gets no time to go on over its limit.
                self.stop(grace_s=0)
        due = min(self._end_at, self._idle.due_at)
        return min(due, watch.due_at) if watch else due

    def _handle_events(self, seconds: float) -> None:
        timeout = None if seconds == _NEVER else max(seconds, 0)
        for key, _ in self._selector.select(timeout):
            key.data()

    def _collect(self) -> None:
        self._close(self._pidfd)
        self._pidfd = -1
        code = self._child.wait()
        if (watch := self._limits.watch) and not self.stopping:
            self.over = watch.ended_by_kernel()
        self.exit_code = code if code >= 0 else 128 - code

    def _read(self, handle: int, sink: Sink) -> None:
        try:
            data = os.read(handle, _CHUNK)
        except BlockingIOError:
            return
        if data:
            self.has_output = True
            sink.add(data)
        else:
            self._close(handle)

    def _close(self, handle: int) -> None:
        self._selector.unregister(handle)
        self._streams.pop(handle, None)
        os.close(handle)


class _IdleTimer:
    """Notices a family of processes that has done nothing for a while."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._ticks = -1
        self._busy_at = time.monotonic()
        self.due_at = _NEVER if longest_s == _NEVER else self._busy_at + _IDLE_CHECK_S

    def is_over(self, now: float, family: Callable[[], dict[int, Process]]) -> bool:
        if now < self.due_at:
            return False
        self.due_at = now + _IDLE_CHECK_S
        living = family().values()
        ticks = sum(process.ticks for process in living)
        if ticks != self._ticks or any(process.state in _AT_WORK for process in living):
            self._ticks, self._busy_at = ticks, now
        return now - self._busy_at > self._longest_s


def supervise(
    command: SandboxedCommand,
    limits: Limits,
    *,
    stdout: Sink,
    stderr: Sink | None = None,
    stdin: bytes | Path = b"",
    cancelled: Callable[[], bool] | None = None,
) -> Ended:
    """Run a sandboxed command to its end, or to its limits; nothing of it is left afterwards.

    Without `stderr`, errors go to `stdout` in the order in which they were printed.
    """
    child = Child()
    supervision = Supervision(child, limits)
    was_cancelled = False

    def check_cancelled(now: float) -> float:
        nonlocal was_cancelled
        if cancelled is None or was_cancelled:
            return _NEVER
        if cancelled():
            was_cancelled = True
            supervision.stop(grace_s=0)
        return now + _CANCEL_CHECK_S

    try:
        handles = child.start(command, stdin, separate=stderr is not None)
        for handle, sink in zip(handles, filter(None, (stdout, stderr)), strict=True):
            supervision.take_output(handle, sink)
        supervision.begin(command.argv)
        supervision.wait(check_cancelled)
    finally:
        child.end_everybody()
        supervision.finish()
    assert supervision.exit_code is not None
    return Ended(supervision.exit_code, supervision.timed_out, supervision.over, was_cancelled)


class Output(NamedTuple):
    """How a short command ended, and the beginnings of what it printed."""

    returncode: int
    stdout: bytes
    stderr: bytes


def run(command: SandboxedCommand, stdin: bytes = b"", *, timeout_s: float = _NEVER) -> Output:
    """Run a short sandboxed command; `TimeoutError` if it does not end in time."""
    stdout, stderr = Buffer(), Buffer()
    ended = supervise(command, Limits(timeout_s), stdout=stdout, stderr=stderr, stdin=stdin)
    if ended.timed_out:
        raise TimeoutError(f"{command.argv[0]} did not end within {timeout_s:g} s")
    return Output(ended.exit_code, bytes(stdout.data), bytes(stderr.data))
