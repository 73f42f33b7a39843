"""The journal of durable runs: the result of a call is on disk before the next call begins."""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import struct
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from caloron.errors import StoreError
from caloron.graph.errors import JournalError, RunConflict, RunInUse
from caloron.graph.json_text import sha256
from caloron.graph.runtime.protocols import JournalEntry, RunHeader
from caloron.graph.storage.sqlite import open_database

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
  run_id TEXT PRIMARY KEY, graph TEXT NOT NULL, input_hash TEXT NOT NULL, profile TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS calls (
  run_id TEXT NOT NULL REFERENCES runs, key TEXT NOT NULL, stage_id TEXT, input_hash TEXT,
  duration_ms INTEGER, output TEXT, failure TEXT, reason TEXT,
  PRIMARY KEY (run_id, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS uses (run_id TEXT PRIMARY KEY, at INTEGER NOT NULL);
"""
_ADD_RUN = "INSERT INTO runs VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_RUN = "SELECT graph, input_hash, profile FROM runs WHERE run_id = ?"
_RECORDED = """
SELECT stage_id, input_hash, duration_ms, output, failure, reason FROM calls
WHERE run_id = ? AND key = ? AND stage_id IS NOT NULL
"""
_INTEND = "INSERT INTO calls (run_id, key) VALUES (?, ?) ON CONFLICT DO NOTHING"
_RECORD = "INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_KEYS = "SELECT key, failure IS NOT NULL FROM calls WHERE run_id = ?"
_FORGET_CALL = "DELETE FROM calls WHERE run_id = ? AND key = ?"
#: The number of an attempt or of an item in a key; quoted names of branches are passed over.
_STEP = re.compile(r'"(?:[^"\\]|\\.)*"|(?:#|\[)(\d+)\]?')
_USE = "INSERT OR REPLACE INTO uses VALUES (?, ?)"
#: Runs of a version without this table count as used now.
_USE_ALL = "INSERT OR IGNORE INTO uses SELECT run_id, ? FROM runs"
_UNUSED = "SELECT run_id FROM uses WHERE at < ?"
_FORGET_RUN = tuple(f"DELETE FROM {table} WHERE run_id = ?" for table in ("calls", "runs", "uses"))
#: A run that was not begun or resumed for so long is removed.
_KEPT_SECONDS = 30 * 24 * 3600


class SqliteJournal:
    """A journal in a directory; it survives `kill -9` and power loss.

    The lock of a run ends with the process that holds it, so that another process can resume the
    run at once. Runs that were not used for 30 days are removed.
    """

    def __init__(self, directory: Path, *, now: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._locked: dict[str, int] = {}
        self._now = now
        with self._described("used"):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
            self._database = open_database(directory / "journal.db", _SCHEMA)

    @contextmanager
    def _described(self, how: str) -> Iterator[None]:
        try:
            yield
        except (StoreError, OSError) as error:
            reason = f"the journal {self._directory} cannot be {how}: {error}"
            raise JournalError(reason) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction; a run must not go on when a result cannot be stored."""
        with self._described("written"), self._database.transaction("graph.journal") as connection:
            yield connection

    def _read(self, statement: str, *values: str) -> sqlite3.Row | None:
        with self._described("read"):
            return self._database.row(statement, values)

    def begin(self, run_id: str, header: RunHeader) -> None:
        self._lock(run_id)
        try:
            with self._writing() as connection:
                values = (run_id, header.graph, header.input_hash, header.profile)
                connection.execute(_ADD_RUN, values)
                connection.execute(_USE, (run_id, int(self._now())))
                self._prune(connection)
            self._require_same(run_id, header)
        except BaseException:
            self.end(run_id)
            raise

    def _prune(self, connection: sqlite3.Connection) -> None:
        now = int(self._now())
        connection.execute(_USE_ALL, (now,))
        for (unused,) in connection.execute(_UNUSED, (now - _KEPT_SECONDS,)).fetchall():
            for statement in _FORGET_RUN:
                connection.execute(statement, (unused,))

    def _lock(self, run_id: str) -> None:
        """Lock one byte of a file; the byte is that of the run."""
        offset = int(sha256(run_id)[:15], 16)
        # The kernel's `struct flock`: type, origin, start, length, and a pid that must be 0.
        byte = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
        with self._described("locked"):
            lock = os.open(
                self._directory / "runs.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            try:
                # A lock of the descriptor also excludes other journals of this process.
                fcntl.fcntl(lock, fcntl.F_OFD_SETLK, byte)
            except BaseException as error:
                os.close(lock)
                if isinstance(error, BlockingIOError):
                    raise RunInUse(f"another process runs {run_id!r} at this moment") from None
                raise
        self._locked[run_id] = lock

    def _require_same(self, run_id: str, header: RunHeader) -> None:
        known = self._read(_RUN, run_id)
        assert known is not None
        for column, value in msgspec.structs.asdict(header).items():
            if known[column] != value:
                other = column.removesuffix("_hash")
                raise RunConflict(f"the run {run_id!r} was begun with another {other}")

    def recorded(self, run_id: str, key: str) -> JournalEntry | None:
        row = self._read(_RECORDED, run_id, key)
        if row is None:
            return None
        failure = None if row["failure"] is None else (row["failure"], row["reason"])
        return JournalEntry(row[0], row[1], row[2], row[3], failure)

    def intend(self, run_id: str, key: str) -> bool:
        with self._writing() as connection:
            return connection.execute(_INTEND, (run_id, key)).rowcount == 0

    def record(self, run_id: str, key: str, entry: JournalEntry) -> None:
        failure, reason = entry.failure or (None, None)
        values = (entry.stage_id, entry.input_hash, entry.duration_ms, entry.output)
        with self._writing() as connection:
            connection.execute(_RECORD, (run_id, key, *values, failure, reason))

    def forget_failures(self, run_id: str) -> None:
        with self._writing() as connection:
            failed = dict(connection.execute(_KEYS, (run_id,)).fetchall())
            for key in _unhandled(failed):
                connection.execute(_FORGET_CALL, (run_id, key))

    def forget(self, run_id: str) -> None:
        """Remove a run for good; refused while a process executes it."""
        self._lock(run_id)
        try:
            with self._writing() as connection:
                for statement in _FORGET_RUN:
                    connection.execute(statement, (run_id,))
        finally:
            self.end(run_id)

    def end(self, run_id: str) -> None:
        lock = self._locked.pop(run_id, None)
        if lock is not None:
            os.close(lock)

    def close(self) -> None:
        self._database.close()


def _unhandled(failed: Mapping[str, bool]) -> list[str]:
    """Return the failed calls that no other call followed.

    A failure that was followed by another attempt, or by another call of the same stage, was dealt
    with then. Repeating it would repeat what succeeded since.
    """
    steps = {key[: step.end()] for key in failed for step in _STEP.finditer(key) if step[1]}
    return [key for key, is_failure in failed.items() if is_failure and not _passed(key, steps)]


def _passed(key: str, steps: Container[str]) -> bool:
    """True if another attempt or call followed one that this key is part of."""
    return any(
        f"{key[: step.start(1)]}{int(step[1]) + 1}{key[step.end(1) : step.end()]}" in steps
        for step in _STEP.finditer(key)
        if step[1]
    )
