"""The time from the record of a merge to the claim of the task that waited for it."""

from __future__ import annotations

from itertools import pairwise

from benchmarks.measure import Measure, median, percentile
from benchmarks.sprints import Event, approves, home, implements

_CHAIN = 16


def run() -> list[Measure]:
    names = [f"t{n:02}" for n in range(_CHAIN)]
    tasks = {name: names[max(n - 1, 0) : n] for n, name in enumerate(names)}
    with home() as bench_home:
        bench_home.write(tasks, [*(implements(name) for name in names), approves()])
        events = bench_home.finish(bench_home.sprint(parallel=4))
    waits = delays(events, names)
    return [
        Measure(
            "dependent dispatched after a merge, p95",
            percentile(waits, 0.95),
            "ms",
            50,
            note=f"{len(waits)} hand-overs in a chain of {_CHAIN} stub tasks,"
            f" median {median(waits):.0f} ms, worst {max(waits):.0f} ms",
        )
    ]


def delays(events: list[Event], names: list[str]) -> list[float]:
    """Milliseconds from each merge to the claim of the next task of the chain."""
    merged = {
        event.payload["task"]: event.ts
        for event in events
        if event.type == "effect_done" and event.payload["kind"] == "merge"
    }
    claimed: dict[str, int] = {}
    for event in events:
        if event.type == "work_item_claimed" and event.item.endswith("-implement"):
            claimed.setdefault(event.item.split("/")[1], event.ts)
    return [float(claimed[after] - merged[before]) for before, after in pairwise(names)]
