"""A durable claim and its end, against a bare loop that makes the same two commits."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Measure, alternate, median, ratio
from caloron.store import queue
from caloron.store.database import Database

#: Waiting at a time: the engine queues no more than its slots can take.
_WAITING = 8
_ROUNDS = 400
_LEASE_MS = 30_000
_FILL_ITEM = (
    "INSERT INTO work_items (id, kind, payload, status, created_at, updated_at)"
    " VALUES (?, 'implement', '{}', 'pending', 0, 0)"
)
_FILL_LEASE = "INSERT INTO leases (item) VALUES (?)"
_NEXT = (
    "SELECT id, payload FROM work_items WHERE status = 'pending'"
    " AND status IN ('pending', 'in_flight') ORDER BY created_at, id LIMIT 1"
)
_LEASE = (
    "UPDATE leases SET token = token + 1, holder = ?, expires_at = ?, started_at = NULL,"
    " activity_at = NULL, result = NULL WHERE item = ?"
)
_CLAIM = "UPDATE work_items SET status = 'in_flight', owner_agent = ?, updated_at = ? WHERE id = ?"
_EVENT = "INSERT INTO events (ts, type, actor, work_item_id, payload) VALUES (?, ?, ?, ?, ?)"
_END = "UPDATE work_items SET status = 'done', updated_at = ? WHERE id = ?"


class Ours:
    """The queue as workers use it."""

    def __init__(self, path: Path) -> None:
        self.db = Database(path, queue.QUEUE_MIGRATIONS)
        self._filled = 0

    def fill(self) -> None:
        with self.db.transaction("fill") as connection:
            for _ in range(_WAITING):
                self._filled += 1
                queue.enqueue(connection, f"bench-1/t{self._filled}/1-implement", "implement", "{}")

    def turn(self) -> float:
        """Seconds per item for claiming and ending everything that waits."""
        self.fill()
        began = time.perf_counter()
        for _ in range(_WAITING):
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
        return (time.perf_counter() - began) / _WAITING


class Bare:
    """Picks the next item and writes the same rows with the same pragmas; no lease is checked,
    no cap counted, no order of importance kept."""

    def __init__(self, path: Path) -> None:
        Database(path, queue.QUEUE_MIGRATIONS).close()
        self._filled = 0
        self._connection = sqlite3.connect(path, isolation_level=None)
        for pragma in ("foreign_keys = ON", "journal_mode = WAL", "synchronous = FULL"):
            self._connection.execute(f"PRAGMA {pragma}")

    def fill(self) -> None:
        items = [f"bench-1/t{self._filled + n}/1-implement" for n in range(_WAITING)]
        self._filled += _WAITING
        self._connection.execute("BEGIN IMMEDIATE")
        for statement in (_FILL_ITEM, _FILL_LEASE):
            self._connection.executemany(statement, [(item,) for item in items])
        self._connection.execute("COMMIT")

    def turn(self) -> float:
        self.fill()
        run = self._connection.execute
        began = time.perf_counter()
        for _ in range(_WAITING):
            run("BEGIN IMMEDIATE")
            item, _payload = run(_NEXT).fetchone()
            now = int(time.time() * 1000)
            run(_LEASE, ("engine-1", now + _LEASE_MS, item))
            run(_CLAIM, ("engine-1", now, item))
            payload = '{"status": "in_flight"}'
            run(_EVENT, (now, "work_item_claimed", "engine-1", item, payload))
            run("COMMIT")
            run("BEGIN IMMEDIATE")
            now = int(time.time() * 1000)
            run(_END, (now, item))
            payload = '{"status": "done", "notes": null}'
            run(_EVENT, (now, "work_item_resolved", None, item, payload))
            run("COMMIT")
        return (time.perf_counter() - began) / _WAITING


def run() -> list[Measure]:
    with tempfile.TemporaryDirectory(prefix="caloron-bench-") as directory:
        ours, bare = Ours(Path(directory, "ours.sqlite")), Bare(Path(directory, "bare.sqlite"))
        mine, theirs = alternate(_ROUNDS, ours.turn, bare.turn)
    return [
        Measure(
            "durable claim and resolve, speed of a bare loop",
            ratio(theirs, mine),
            "x",
            0.8,
            "more",
            f"{1 / median(mine):,.0f} items/s; the bare loop of the same two commits"
            f" {1 / median(theirs):,.0f}/s",
        )
    ]
