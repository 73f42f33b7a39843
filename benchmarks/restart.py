"""The time from `caloron resume` to the first claim, with a short and a very long history."""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack

from benchmarks.filling import fill
from benchmarks.measure import Measure, alternate, median, ratio
from benchmarks.sprints import (
    PROGRAM,
    SOURCE,
    Home,
    home,
    implements,
    started,
    stop,
    wait_for,
)

_SIZES = (1_000, 1_000_000)
_ROUNDS = 7


def run() -> list[Measure]:
    with ExitStack() as homes:
        bench_homes = [homes.enter_context(home()) for _ in _SIZES]
        for bench_home, size in zip(bench_homes, _SIZES, strict=True):
            _stopped_sprint(bench_home)
            fill(bench_home.ledger, size)
        short, long, bare = alternate(
            _ROUNDS,
            *(lambda bench_home=bench_home: _resume(bench_home) for bench_home in bench_homes),
            _bare,
        )
    return [
        Measure(
            "restart to first dispatch at 1 M events",
            median(long),
            "s",
            1.0,
            note=f"worst of {_ROUNDS} {max(long):.2f} s; at 1 k events {median(short):.2f} s;"
            f" an interpreter that imports the same {median(bare):.2f} s",
        ),
        Measure(
            "restart at 1 M events, of that at 1 k",
            ratio(long, short),
            "x",
        ),
    ]


def _stopped_sprint(bench_home: Home) -> None:
    """A sprint that was stopped while its agent was at work."""
    bench_home.write({"t1": []}, [implements("t1", 600)])
    process = bench_home.sprint(parallel=1)
    wait_for(lambda: started(bench_home) > 0, process)
    stop(process)


def _resume(bench_home: Home) -> float:
    """Seconds until the waiting work is claimed again."""
    before = bench_home.last_event()
    began = time.time()
    process = bench_home.start("resume")
    try:
        wait_for(lambda: _claimed(bench_home, before) is not None, process)
        claimed = _claimed(bench_home, before)
        assert claimed is not None
        return claimed / 1000 - began
    finally:
        stop(process)


def _claimed(bench_home: Home, after: int) -> int | None:
    """Return the time of the first claim after an event, in milliseconds."""
    if not bench_home.has_ledger():
        return None
    sql = "SELECT ts FROM events WHERE id > ? AND +type = 'work_item_claimed' ORDER BY id LIMIT 1"
    with bench_home.reading() as connection:
        row = connection.execute(sql, (after,)).fetchone()
    return int(row[0]) if row else None


def _bare() -> float:
    began = time.time()
    code = "import caloron.cli.commands.sprint.sprint"
    subprocess.run((*PROGRAM[:2], code), env={"PYTHONPATH": str(SOURCE)}, check=True)
    return time.time() - began
