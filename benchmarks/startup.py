"""`status`, `history` and `why` from a cold start, against the ancestor's published package."""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Measure, alternate, median, ratio
from benchmarks.sprints import SOURCE, approves, home, implements, our_program

_RIVAL = "caloron-alpibru==0.4.2"
_RUNS = 21
_TASKS = 4
_COMMANDS = ("status", "history", "why")


def run() -> list[Measure]:
    rival = rival_program()
    # As in an installation: a checkout may contain sources that were never compiled.
    compileall.compile_dir(SOURCE, quiet=1)
    names = [f"t{n}" for n in range(_TASKS)]
    with home() as bench_home:
        bench_home.write({n: [] for n in names}, [*(implements(n) for n in names), approves()])
        bench_home.finish(bench_home.sprint(parallel=_TASKS))
        ours = [timed((*our_program(), command), bench_home.environment) for command in _COMMANDS]
        bare = timed((sys.executable, "-c", "pass"), bench_home.environment)
        if rival is None:
            *mine, empty = alternate(_RUNS, *ours, bare)
            return [_without_rival(*pair, empty) for pair in zip(_COMMANDS, mine, strict=True)]
        other = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        other["CALORON_HOME"] = str(bench_home.directory / "rival")
        subprocess.run((rival, "init", "bench"), env=other, check=True, capture_output=True)
        *mine, theirs, empty = alternate(_RUNS, *ours, timed((rival, "status"), other), bare)
    return [
        _beside(command, times, theirs, empty)
        for command, times in zip(_COMMANDS, mine, strict=True)
    ]


def _beside(command: str, mine: list[float], theirs: list[float], bare: list[float]) -> Measure:
    return Measure(
        f"`{command}` cold, of {_RIVAL}'s `status`",
        ratio(mine, theirs),
        "x",
        1 / 3,
        note=f"{median(mine) * 1000:.0f} ms with a finished sprint; the rival"
        f" {median(theirs) * 1000:.0f} ms without one; a bare interpreter"
        f" {median(bare) * 1000:.0f} ms; medians of {_RUNS} runs in turn",
    )


def _without_rival(command: str, mine: list[float], bare: list[float]) -> Measure:
    return Measure(
        f"`{command}` cold",
        median(mine) * 1000,
        "ms",
        note=f"NOT COMPARED: {_RIVAL} could not be installed;"
        f" a bare interpreter {median(bare) * 1000:.0f} ms",
    )


def rival_program() -> Path | None:
    """The ancestor's program in an environment of its own, kept for the next run."""
    bench_home = Path("~/.cache/caloron-bench").expanduser() / _RIVAL
    program = bench_home / "bin" / "caloron"
    if program.exists():
        return program
    pip = (str(bench_home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check")
    for command in ((sys.executable, "-m", "venv", str(bench_home)), (*pip, _RIVAL)):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"!! {_RIVAL} cannot be installed: {done.stderr.strip()[-500:]}")
            return None
    return program


def timed(command: tuple[str | Path, ...], environment: dict[str, str]) -> Callable[[], float]:
    def timed_run() -> float:
        began = time.perf_counter()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began

    return timed_run
