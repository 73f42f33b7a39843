"""A durable claim and its end, against a bare loop that makes the same two commits."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Measure, alternate, median, median_ratio
from caloron.store import queue
from caloron.store.database import Database

_ITEMS = 50
_ROUNDS = 40
_LEASE_MS = 30_000
_BARE = (
    "UPDATE leases SET token = token + 1, holder = ?, expires_at = ?, started_at = NULL,"
    " activity_at = NULL, result = NULL WHERE item = ?",
    "UPDATE work_items SET status = 'in_flight', owner_agent = ?, updated_at = ? WHERE id = ?",
    "INSERT INTO events (ts, type, actor, work_item_id, payload) VALUES (?, ?, ?, ?, ?)",
    "UPDATE work_items SET status = 'done', updated_at = ? WHERE id = ?",
)


class Ours:
    """The queue as workers use it."""

    def __init__(self, path: Path) -> None:
        self.db = Database(path, queue.QUEUE_MIGRATIONS)
        self._filled = 0

    def fill(self) -> None:
        with self.db.transaction("fill") as connection:
            for _ in range(_ITEMS):
                self._filled += 1
                queue.enqueue(connection, f"bench-1/t{self._filled}/1-implement", "implement", "{}")

    def block(self) -> float:
        """Seconds per item for one block of claims and their ends."""
        self.fill()
        began = time.perf_counter()
        for _ in range(_ITEMS):
            with self.db.transaction("claim") as connection:
                claimed = queue.claim(
                    connection,
                    ("implement",),
                    holder="engine-1",
                    lease_ms=_LEASE_MS,
                    cap=8,
                    scope="bench-1/",
                )
            assert claimed is not None
            with self.db.transaction("settle") as connection:
                queue.settle(connection, claimed.item, claimed.token, "done")
        return (time.perf_counter() - began) / _ITEMS


class Bare:
    """The same rows in the same tables with the same pragmas, and nothing else."""

    def __init__(self, path: Path) -> None:
        self._filler = Ours(path)
        self._first = 1
        self._connection = sqlite3.connect(path, isolation_level=None)
        for pragma in ("foreign_keys = ON", "journal_mode = WAL", "synchronous = FULL"):
            self._connection.execute(f"PRAGMA {pragma}")

    def block(self) -> float:
        self._filler.fill()
        items = [f"bench-1/t{self._first + n}/1-implement" for n in range(_ITEMS)]
        self._first += _ITEMS
        run = self._connection.execute
        lease, claim, event, end = _BARE
        began = time.perf_counter()
        for item in items:
            run("BEGIN IMMEDIATE")
            now = int(time.time() * 1000)
            run(lease, ("engine-1", now + _LEASE_MS, item))
            run(claim, ("engine-1", now, item))
            payload = '{"status": "in_flight"}'
            run(event, (now, "work_item_claimed", "engine-1", item, payload))
            run("COMMIT")
            run("BEGIN IMMEDIATE")
            now = int(time.time() * 1000)
            run(end, (now, item))
            payload = '{"status": "done", "notes": null}'
            run(event, (now, "work_item_resolved", None, item, payload))
            run("COMMIT")
        return (time.perf_counter() - began) / _ITEMS


def run() -> list[Measure]:
    with tempfile.TemporaryDirectory(prefix="caloron-bench-") as directory:
        ours, bare = Ours(Path(directory, "ours.sqlite")), Bare(Path(directory, "bare.sqlite"))
        mine, theirs = alternate(_ROUNDS, ours.block, bare.block)
    return [
        Measure(
            "durable claim and resolve, speed of a bare loop",
            1 / median_ratio(mine, theirs),
            "×",
            0.8,
            "more",
            f"{1 / median(mine):,.0f} items/s; the bare loop of the same two commits"
            f" {1 / median(theirs):,.0f}/s",
        )
    ]
