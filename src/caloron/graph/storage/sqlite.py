"""Small databases of this library: opened alike, for threads and processes at once."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_BUSY_SECONDS = 30.0


class Database:
    """One connection that threads take turns with; other processes have their own."""

    def __init__(self, path: Path, schema: str, *, survives_power_loss: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_private(path)
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(
            path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            level = "FULL" if survives_power_loss else "NORMAL"
            self._connection.execute(f"PRAGMA synchronous = {level}")
            with self.transaction() as connection:
                for statement in schema.split(";;"):
                    connection.execute(statement)
        except sqlite3.Error:
            self._connection.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing; the right to write is asked for first, so that nobody deadlocks."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # A full disk makes SQLite roll back by itself.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def read(self, statement: str, values: tuple[str, ...]) -> tuple[object, ...] | None:
        """One row, or none."""
        with self._lock:
            row: tuple[object, ...] | None = self._connection.execute(statement, values).fetchone()
            return row

    def close(self) -> None:
        with self._lock:
            self._connection.close()


def _make_private(path: Path) -> None:
    """Values of graphs may be confidential: only their owner reads the file, also an older one."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError, PermissionError):
            path.with_name(path.name + suffix).chmod(0o600)
