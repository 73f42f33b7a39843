"""The cost of the live view while agents think: `sprint` on a terminal, and without one."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading
import time

from benchmarks.measure import Measure
from benchmarks.processes import cpu_seconds
from benchmarks.sprints import PROGRAM, Home, approves, home, implements, started, stop, wait_for

_TASKS = 8
_AT_WORK = 4
_SETTLE_S = 2.0
_WATCHED_S = 20.0
_ROWS, _COLUMNS = 40, 160


def run() -> list[Measure]:
    alone, _ = _quiet_stretch(terminal=False)
    watched, drawn = _quiet_stretch(terminal=True)
    return [
        Measure(
            f"live view of {_TASKS} tasks, CPU",
            watched * 100,
            "%",
            2.0,
            note=f"the whole process; without a terminal {alone * 100:.2f} %; it wrote"
            f" {drawn / _WATCHED_S:.0f} bytes a second to the terminal",
        )
    ]


def _quiet_stretch(*, terminal: bool) -> tuple[float, int]:
    """The share of a processor that the process used, and what it wrote, while nothing happened."""
    names = [f"t{n}" for n in range(_TASKS)]
    with home() as bench_home:
        bench_home.write({n: [] for n in names}, [*(implements(n, 600) for n in names), approves()])
        screen = _Screen() if terminal else None
        process = _on(screen, bench_home) if screen else bench_home.sprint(parallel=_AT_WORK)
        try:
            wait_for(lambda: started(bench_home) >= _AT_WORK, process)
            time.sleep(_SETTLE_S)
            drawn = screen.drawn if screen else 0
            before, began = cpu_seconds(process.pid), time.monotonic()
            time.sleep(_WATCHED_S)
            used, passed = cpu_seconds(process.pid) - before, time.monotonic() - began
            drawn = screen.drawn - drawn if screen else 0
            if screen and not drawn:
                raise RuntimeError("nothing was drawn: this is not the live view")
        finally:
            stop(process)
            if screen:
                screen.close()
    return used / passed, drawn


def _on(screen: _Screen, bench_home: Home) -> subprocess.Popen[bytes]:
    plan = str(bench_home.directory / "plan.json")
    goal = ("Measure this", "--project", "bench")
    argv = (*PROGRAM, "sprint", *goal, "--plan", plan, "--yes", "--parallel")
    environment = {k: v for k, v in bench_home.environment.items() if k != "NO_COLOR"}
    return subprocess.Popen(
        (*argv, str(_AT_WORK)),
        env=environment | {"TERM": "xterm-256color"},
        stdin=screen.slave,
        stdout=screen.slave,
        stderr=screen.slave,
        start_new_session=True,
    )


class _Screen:
    """A pseudo-terminal that reads everything, as a terminal does."""

    def __init__(self) -> None:
        self._master, self.slave = pty.openpty()
        size = struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0)
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, size)
        self.drawn = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                self.drawn += len(os.read(self._master, 1 << 16))
            except OSError:
                # The last writer has gone.
                return

    def close(self) -> None:
        os.close(self.slave)
        self._reader.join(5)
        os.close(self._master)
