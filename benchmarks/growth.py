"""The cost of one event in a ledger of a thousand events, and of a million."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.filling import fill
from benchmarks.measure import Measure, alternate, median, ratio
from caloron.ledger.ledger import Ledger
from caloron.ledger.work_queue import WorkQueue
from caloron.store import queue

_SIZES = (1_000, 10_000, 100_000, 1_000_000)
_WAITING = 8
_ROUNDS = 120
#: Created, claimed, noted and resolved.
_EVENTS_PER_ITEM = 4


class Grown:
    """A ledger of some size, and the engine's everyday use of it."""

    def __init__(self, path: Path, size: int) -> None:
        self._ledger = Ledger(path)
        fill(path, size)
        self._queue = WorkQueue(self._ledger, "bench-1", holder="engine-1", lease_ms=30_000)
        self._items = 0

    def turn(self) -> float:
        """Seconds per event: each item is queued, claimed, read, noted and closed."""
        began = time.perf_counter()
        self._fill()
        self._drain()
        return (time.perf_counter() - began) / (_WAITING * _EVENTS_PER_ITEM)

    def _fill(self) -> None:
        db = self._ledger.db
        with db.transaction("fill") as connection:
            for _ in range(_WAITING):
                self._items += 1
                item = f"bench-1/t{self._items}/1-implement"
                queue.enqueue(connection, item, "implement", "{}")

    def _drain(self) -> None:
        db = self._ledger.db
        while self._queue.has_pending(("implement",)):
            with db.transaction("claim") as connection:
                claimed = queue.claim(
                    connection, ("implement",), holder="engine-1", lease_ms=30_000, cap=8
                )
            assert claimed is not None
            assert len(self._queue.in_flight()) == 1
            self._queue.note("seen", claimed.item, {"token": claimed.token})
            with db.transaction("settle") as connection:
                queue.settle(connection, claimed.item, claimed.token, "done")


def run() -> list[Measure]:
    with tempfile.TemporaryDirectory(prefix="caloron-bench-") as directory:
        grown = [Grown(Path(directory, f"{size}.sqlite"), size) for size in _SIZES]
        times = alternate(_ROUNDS, *(ledger.turn for ledger in grown))
    times_by_size = ", ".join(
        f"{size:,}: {median(seconds) * 1e6:.0f} µs"
        for size, seconds in zip(_SIZES, times, strict=True)
    )
    worst = max(ratio(seconds, times[0]) for seconds in times[1:])
    return [
        Measure(
            "cost per event, 1 k to 1 M events",
            worst,
            "x",
            1.2,
            note=f"the worst size against {_SIZES[0]:,} events; per event at {times_by_size}",
        )
    ]
