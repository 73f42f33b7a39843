"""A database with a queue, and several processes that use it at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import pytest

from caloron.store.database import Database
from caloron.store.queue import QUEUE_MIGRATIONS, Claim, claim, enqueue

#: Processes that start fast and share nothing with this one.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["caloron.ledger.ledger", "tests.integration.store.conftest"])


class Queue:
    """The queue of one database, one transaction per call."""

    def __init__(self, path: Path) -> None:
        self.db = Database(path, QUEUE_MIGRATIONS)

    def add(
        self, *items: str, kind: str = "implement", priority: int = 0, not_before: int = 0
    ) -> None:
        with self.db.transaction("test") as connection:
            for item in items:
                enqueue(connection, item, kind, "{}", priority=priority, not_before=not_before)

    def take(self, *kinds: str, cap: int = 99, lease_ms: int = 60_000) -> Claim | None:
        with self.db.transaction("test") as connection:
            return claim(
                connection, kinds or ("implement",), holder="me", lease_ms=lease_ms, cap=cap
            )

    def must_take(self) -> Claim:
        taken = self.take()
        assert taken is not None
        return taken

    def lease(self, item: str) -> dict[str, object]:
        row = self.db.row("SELECT * FROM leases WHERE item = ?", (item,))
        assert row is not None
        return dict(row)

    def everything(self) -> list[tuple[object, ...]]:
        """All that the queue holds, for a look at whether anything changed."""
        tables = ("work_items", "leases", "events", "event_keys")
        return [tuple(r) for t in tables for r in self.db.rows(f"SELECT * FROM {t}")]

    def shift_clock(self, ms: int) -> None:
        with self.db.transaction("test") as connection:
            connection.execute("UPDATE clock_offset SET ms = ms + ?", (ms,))


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    made = Queue(tmp_path / "queue.db")
    yield made
    made.db.close()
