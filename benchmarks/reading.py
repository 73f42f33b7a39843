"""The time of `history` and `metrics` over ten sprints and over ten thousand."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Measure, alternate, median, ratio
from benchmarks.sprints import Home, approves, home, implements, our_program
from caloron.ledger.ledger import Ledger
from caloron.ledger.run_history import store_records

_FEW, _MANY = 10, 10_000
_RUNS = 15
_TASKS = 2


def run() -> list[Measure]:
    names = [f"t{n}" for n in range(_TASKS)]
    with home() as bench_home:
        bench_home.write({n: [] for n in names}, [*(implements(n) for n in names), approves()])
        bench_home.finish(bench_home.sprint(parallel=_TASKS))
        few, many = _grown(bench_home, "few", _FEW), _grown(bench_home, "many", _MANY)
        history = alternate(_RUNS, _timed(few, "history"), _timed(many, "history"))
        metrics = alternate(_RUNS, _timed(few, "metrics"), _timed(many, "metrics"))
        _forget_records(many)
        anew = [_timed(many, "metrics")()]
    return [
        Measure(
            f"`history` over {_MANY:,} sprints, of over {_FEW}",
            ratio(history[1], history[0]),
            "x",
            1.5,
            note=_note(history),
        ),
        Measure(
            f"`metrics` over {_MANY:,} sprints, of over {_FEW}",
            ratio(metrics[1], metrics[0]),
            "x",
            note=f"{_note(metrics)}; with every record to be worked out anew"
            f" {anew[0] * 1000:.0f} ms",
        ),
    ]


def _note(times: list[list[float]]) -> str:
    return f"{median(times[1]) * 1000:.0f} ms of {median(times[0]) * 1000:.0f} ms"


def _grown(bench_home: Home, name: str, sprints: int) -> dict[str, str]:
    """A copy of the home in which the real sprint stands there so many times."""
    copy = bench_home.directory / name
    shutil.copytree(bench_home.directory / "home", copy, ignore=shutil.ignore_patterns("wake"))
    ledger = copy / "projects" / "bench" / "ledger.sqlite"
    _multiply(ledger, sprints)
    book = Ledger(ledger)
    store_records(book)
    book.close()
    return bench_home.environment | {"CALORON_HOME": str(copy)}


def _multiply(ledger: Path, sprints: int) -> None:
    connection = sqlite3.connect(ledger, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN IMMEDIATE")
    for table in ("sprints", "tasks", "work_items", "leases", "events"):
        kept = connection.execute(f"SELECT * FROM {table}")
        columns = [column[0] for column in kept.description]
        rows = kept.fetchall()
        if table == "events":
            rows, columns = [row[1:] for row in rows], columns[1:]
        places = ", ".join("?" * len(columns))
        sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})"
        connection.executemany(
            sql,
            (
                [_of(value, columns[n], number) for n, value in enumerate(row)]
                for number in range(2, sprints + 1)
                for row in rows
            ),
        )
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def _of(value: object, column: str, number: int) -> object:
    """A value of the first sprint as the sprint with this number has it."""
    if column == "number":
        return number
    if isinstance(value, bytes):
        return value.replace(b'"bench-1', b'"bench-%d' % number)
    if isinstance(value, str) and "bench-1" in value:
        return value.replace("bench-1", f"bench-{number}")
    return value


def _forget_records(environment: dict[str, str]) -> None:
    ledger = Path(environment["CALORON_HOME"]) / "projects" / "bench" / "ledger.sqlite"
    connection = sqlite3.connect(ledger, isolation_level=None)
    connection.execute("DELETE FROM records")
    connection.close()


def _timed(environment: dict[str, str], command: str) -> Callable[[], float]:
    def timed_run() -> float:
        began = time.perf_counter()
        argv = (*our_program(), command, "--output", "json")
        subprocess.run(argv, env=environment, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began

    return timed_run
