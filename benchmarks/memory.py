"""The memory of the engine and its shims while eight agents are at work."""

from __future__ import annotations

import sys
from subprocess import run as run_process

from benchmarks.measure import Measure, median
from benchmarks.processes import children, resident_mb
from benchmarks.sprints import approves, home, implements, started, stop, wait_for

_AGENTS = 8


def run() -> list[Measure]:
    names = [f"t{n}" for n in range(_AGENTS)]
    with home() as bench_home:
        bench_home.write({n: [] for n in names}, [*(implements(n, 600) for n in names), approves()])
        process = bench_home.sprint(parallel=_AGENTS)
        try:
            wait_for(lambda: started(bench_home) >= _AGENTS, process)
            engine, peak = resident_mb(process.pid), resident_mb(process.pid, "VmHWM")
            shims = [resident_mb(pid) for pid in children(process.pid, "shim.py")]
        finally:
            stop(process)
    bare = _bare_interpreter()
    return [
        Measure(
            f"engine resident with {_AGENTS} agents",
            engine,
            "MB",
            80,
            note=f"at most {peak:.0f} MB so far; {engine / bare:.1f} times a bare interpreter"
            f" with sqlite3 ({bare:.0f} MB)",
        ),
        Measure(
            "each shim resident",
            median(shims),
            "MB",
            note=f"{len(shims)} shims, {min(shims):.1f} to {max(shims):.1f} MB",
        ),
    ]


def _bare_interpreter() -> float:
    code = "import sqlite3; print(open('/proc/self/status').read())"
    result = run_process((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    line = next(line for line in result.stdout.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6
