"""The load of an engine whose agent thinks while nothing else happens: as good as none."""

from __future__ import annotations

import time

from benchmarks.measure import Measure
from benchmarks.processes import children, cpu_seconds
from benchmarks.sprints import approves, home, implements, started, stop, wait_for

_SETTLE_S = 2.0
_WATCHED_S = 25.0


def run() -> list[Measure]:
    with home() as bench_home:
        bench_home.write({"t1": []}, [implements("t1", 600), approves()])
        process = bench_home.sprint(parallel=4)
        try:
            wait_for(lambda: started(bench_home) >= 1, process)
            time.sleep(_SETTLE_S)
            (shim,) = children(process.pid, "shim.py")
            calls, before, shim_before = (
                started(bench_home),
                cpu_seconds(process.pid),
                cpu_seconds(shim),
            )
            began = time.monotonic()
            time.sleep(_WATCHED_S)
            passed = time.monotonic() - began
            used, shim_used = cpu_seconds(process.pid) - before, cpu_seconds(shim) - shim_before
            calls = started(bench_home) - calls
        finally:
            stop(process)
    return [
        Measure(
            "idle engine with one agent at work, CPU",
            used / passed * 100,
            "%",
            0.5,
            note=f"{used * 1000:.0f} ms in {passed:.0f} s; its shim {shim_used * 1000:.0f} ms",
        ),
        Measure("agent calls meanwhile", calls, "", 0),
    ]
