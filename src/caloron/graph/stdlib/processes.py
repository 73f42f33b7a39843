"""Processes that outlive the stage that starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

from caloron.graph.errors import StageFailed
from caloron.graph.jsontext import Json
from caloron.graph.protocols import Call
from caloron.graph.stdlib.given import items, mapping, number, optional, text

_MILLISECONDS = 30_000
_LOOK_EVERY = 0.1


class Processes:
    """Starts processes, and knows those that it started, so that they can be reaped."""

    def __init__(self) -> None:
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()

    def spawn(self, given: Json) -> Json:
        given_args = optional(given, "args")
        args = [] if given_args is None else [text(one) for one in items(given, "args")]
        extra = {} if optional(given, "env") is None else mapping(given, "env")
        try:
            child = subprocess.Popen(
                [text(given, "cmd"), *args],
                cwd=optional(given, "cwd"),
                env={**os.environ, **{name: str(value) for name, value in extra.items()}},
            )
        except (OSError, ValueError) as error:
            raise StageFailed(f"the process cannot be started: {error}") from error
        with self._lock:
            self._started[child.pid] = child
        return {"pid": child.pid, "started_at": int(time.time())}

    def wait(self, given: Json, call: Call) -> Json:
        limit = optional(given, "timeout_ms")
        allowed = number(limit) if limit is not None else _MILLISECONDS
        until = time.monotonic() + allowed / 1000
        while self._lives(_pid(given)):
            if time.monotonic() >= until:
                return {"exited": False, "timed_out": True}
            call.sleep(_LOOK_EVERY)
        return {"exited": True, "timed_out": False}

    def signal(self, given: Json) -> Json:
        name = optional(given, "signal") or "TERM"
        if not isinstance(name, str) or not name.isalnum():
            raise StageFailed(f"{name!r} is no signal")
        number = getattr(signal, f"SIG{name.upper().removeprefix('SIG')}", None)
        if number is None:
            raise StageFailed(f"{name!r} is no signal")
        return {"sent": self._send(_pid(given), number)}

    def kill(self, given: Json) -> Json:
        return {"killed": self._send(_pid(given), signal.SIGKILL)}

    def _send(self, pid: int, number: int) -> bool:
        if not self._lives(pid):
            return False
        try:
            os.kill(pid, number)
        except OSError:
            return False
        return True

    def _lives(self, pid: int) -> bool:
        with self._lock:
            child = self._started.get(pid)
        if child is not None:
            return child.poll() is None
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def _pid(given: Json) -> int:
    pid = int(number(given, "pid"))
    if pid <= 0:
        raise StageFailed(f"{pid} is no process")
    return pid
