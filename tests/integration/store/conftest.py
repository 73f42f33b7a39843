"""A database with a queue, and several processes that use it at once."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from caloron.store import crash
from caloron.store.database import Database
from caloron.store.queue import QUEUE_MIGRATIONS, Claim, claim, enqueue

T = TypeVar("T")
#: Processes that start fast and share nothing with this one.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["caloron.ledger.ledger", "tests.integration.store.conftest"])


def exit_code(act: Callable[[], object], *, killed_at: str = "", largest_file: int = 0) -> int:
    """Run an action in a child process, and return its exit code.

    `killed_at`: a crash point, `name|k` for the k-th time.
    `largest_file`: stands in for the end of the disk.
    """
    child = os.fork()
    if child == 0:
        try:
            # Whatever the tests before were in this process.
            crash.this_process_is("engine")
            crash._COUNTS.clear()
            point = killed_at if "|" in killed_at else f"{killed_at}|1"
            crash._AT = f"engine|{point}|{tempfile.mktemp()}" if killed_at else ""
            if largest_file:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
            act()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the child must not return into pytest
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Queue:
    """The queue of one database, one transaction per call."""

    def __init__(self, path: Path) -> None:
        self.db = Database(path, QUEUE_MIGRATIONS)

    def do(self, act: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call a function of the queue in a transaction of its own."""
        with self.db.transaction("test") as connection:
            return act(connection, *args, **options)

    def add(
        self, *items: str, kind: str = "implement", priority: int = 0, not_before: int = 0
    ) -> None:
        for item in items:
            self.do(enqueue, item, kind, "{}", priority=priority, not_before=not_before)

    def take(self, *kinds: str, cap: int = 99, scope: str = "") -> Claim | None:
        options: dict[str, Any] = {"holder": "me", "lease_ms": 60_000, "cap": cap, "scope": scope}
        return self.do(claim, kinds or ("implement",), **options)

    def must_take(self) -> Claim:
        taken = self.take()
        assert taken is not None
        return taken

    def lease(self, item: str) -> dict[str, object]:
        row = self.db.row("SELECT * FROM leases WHERE item = ?", (item,))
        assert row is not None
        return dict(row)

    def everything(self) -> list[tuple[object, ...]]:
        """Return all rows of the queue, to see whether anything changed."""
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
