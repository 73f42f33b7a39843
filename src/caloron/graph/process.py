"""A child process with a limit for everything: its time, its words, its descendants."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO

import msgspec

from caloron.graph.errors import Cancelled, StageFailed, StageTimedOut

_LOOK_EVERY = 0.05
_LOOK_AGAIN = 0.001
_LAST_WORDS = 1.0
_MOST_STDERR = 64 * 1024


class Ended(msgspec.Struct, frozen=True):
    """How a process ended and what it said."""

    code: int
    stdout: bytes
    stderr: str
    too_long: bool


class _Reader(threading.Thread):
    """Reads a stream to its end and keeps so much of it."""

    def __init__(self, stream: IO[bytes], most: int) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._most = most
        self.kept = bytearray()
        self.too_long = False

    def run(self) -> None:
        while chunk := os.read(self._stream.fileno(), 65536):
            room = self._most - len(self.kept)
            self.kept += chunk[: max(room, 0)]
            self.too_long = self.too_long or len(chunk) > room


def run_process(
    argv: Sequence[str],
    stdin: bytes,
    *,
    seconds: float,
    stopped: Callable[[], bool],
    most_output: int,
    environ: Mapping[str, str] | None = None,
) -> Ended:
    """Runs a command to its end; past its time, or when nobody waits, its whole group is killed."""
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if environ is None else dict(environ),
            start_new_session=True,
        )
    except OSError as error:
        raise StageFailed(f"{argv[0]} cannot be started: {error.strerror}") from error
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    out, err = _Reader(child.stdout, most_output), _Reader(child.stderr, _MOST_STDERR)
    feeder = threading.Thread(target=_feed, args=(child.stdin, stdin), daemon=True)
    for thread in (out, err, feeder):
        thread.start()
    try:
        _wait(child, (out, err), seconds, stopped)
    finally:
        _end(child, (out, err, feeder))
    return Ended(
        child.returncode, bytes(out.kept), err.kept.decode("utf-8", "replace"), out.too_long
    )


def _feed(stream: IO[bytes], data: bytes) -> None:
    # A child need not read what it is given.
    with suppress(BrokenPipeError), stream:
        stream.write(data)


def _wait(
    child: subprocess.Popen[bytes],
    readers: Sequence[_Reader],
    seconds: float,
    stopped: Callable[[], bool],
) -> None:
    """Until the child has ended, which is noticed at once because it then closes its streams."""
    until = time.monotonic() + seconds
    while not _has_ended(child) and not readers[0].too_long:
        left = until - time.monotonic()
        if stopped():
            raise Cancelled("given up because nobody waits for it any more")
        if left <= 0:
            raise StageTimedOut(f"not done after {round(seconds, 2):g} s", seconds=seconds)
        waiting = next((reader for reader in readers if reader.is_alive()), None)
        if waiting is not None:
            waiting.join(min(left, _LOOK_EVERY))
        else:
            time.sleep(_LOOK_AGAIN)


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Without reaping it: until then its number, and that of its group, belong to it."""
    kinds = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, child.pid, kinds) is not None


def _end(child: subprocess.Popen[bytes], threads: Sequence[threading.Thread]) -> None:
    """Leaves nothing of the child behind, whether it ended by itself or not."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for thread in threads:
        # A descendant that left the group may hold a stream open; nobody waits for it.
        thread.join(_LAST_WORDS)
    if not any(thread.is_alive() for thread in threads):
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()
