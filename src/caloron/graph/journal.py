"""Durable runs: what each call gave is on disk before the next one begins."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from caloron.graph.errors import RunConflict
from caloron.graph.jsontext import sha256
from caloron.graph.protocols import Entry, RunHeader
from caloron.graph.sqlite import Database

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
  run_id TEXT PRIMARY KEY, graph TEXT NOT NULL, input_hash TEXT NOT NULL, profile TEXT NOT NULL
);;
CREATE TABLE IF NOT EXISTS calls (
  run_id TEXT NOT NULL REFERENCES runs, key TEXT NOT NULL, stage_id TEXT, input_hash TEXT,
  duration_ms INTEGER, output TEXT, failure TEXT, reason TEXT,
  PRIMARY KEY (run_id, key)) WITHOUT ROWID
"""
_ADD_RUN = "INSERT INTO runs VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_RUN = "SELECT graph, input_hash, profile FROM runs WHERE run_id = ?"
_RECORDED = """
SELECT stage_id, input_hash, duration_ms, output, failure, reason FROM calls
WHERE run_id = ? AND key = ? AND stage_id IS NOT NULL
"""
_INTEND = "INSERT INTO calls (run_id, key) VALUES (?, ?) ON CONFLICT DO NOTHING"
_RECORD = "INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_FORGET_FAILURES = "DELETE FROM calls WHERE run_id = ? AND failure IS NOT NULL"
_FORGET_CALLS = "DELETE FROM calls WHERE run_id = ?"
_FORGET_RUN = "DELETE FROM runs WHERE run_id = ?"


class MemoryJournal:
    """A journal that lives as long as its process: for tests, and to see what a run records."""

    def __init__(self) -> None:
        self.headers: dict[str, RunHeader] = {}
        self.entries: dict[tuple[str, str], Entry | None] = {}
        self._lock = threading.Lock()

    def begin(self, run_id: str, header: RunHeader) -> None:
        _same_run(run_id, self.headers.setdefault(run_id, header), header)

    def recorded(self, run_id: str, key: str) -> Entry | None:
        return self.entries.get((run_id, key))

    def intend(self, run_id: str, key: str) -> bool:
        with self._lock:
            before = (run_id, key) in self.entries
            self.entries.setdefault((run_id, key), None)
            return before

    def record(self, run_id: str, key: str, entry: Entry) -> None:
        with self._lock:
            self.entries[run_id, key] = entry

    def forget_failures(self, run_id: str) -> None:
        with self._lock:
            for place, entry in list(self.entries.items()):
                if place[0] == run_id and entry is not None and entry.failure is not None:
                    del self.entries[place]

    def end(self, run_id: str) -> None:
        """Nothing is held."""


class SqliteJournal:
    """A journal in a directory; it survives `kill -9` and power loss.

    The lock of a run goes with the process that holds it, so that the next one can go on at once.
    """

    def __init__(self, directory: Path) -> None:
        self._locks = directory / "locks"
        self._held: dict[str, int] = {}
        try:
            self._locks.mkdir(parents=True, exist_ok=True)
            path = directory / "journal.db"
            self._database = Database(path, _SCHEMA, survives_power_loss=True)
        except (sqlite3.Error, OSError) as error:
            raise RunConflict(f"the journal {directory} cannot be used: {error}") from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A run must not go on when what it did cannot be kept."""
        try:
            with self._database.transaction() as connection:
                yield connection
        except sqlite3.Error as error:
            raise RunConflict(f"the journal cannot be written: {error}") from error

    def _read(self, statement: str, *values: str) -> tuple[object, ...] | None:
        try:
            return self._database.read(statement, values)
        except sqlite3.Error as error:
            raise RunConflict(f"the journal cannot be read: {error}") from error

    def begin(self, run_id: str, header: RunHeader) -> None:
        self._hold(run_id)
        try:
            with self._writing() as connection:
                values = (run_id, header.graph, header.input_hash, header.profile)
                connection.execute(_ADD_RUN, values)
            _same_run(run_id, self._header(run_id), header)
        except BaseException:
            self.end(run_id)
            raise

    def _hold(self, run_id: str) -> None:
        lock = os.open(self._lock_file(run_id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise RunConflict(f"somebody runs {run_id!r} at this moment") from error
        self._held[run_id] = lock

    def _lock_file(self, run_id: str) -> Path:
        # A run id may hold anything; the name of a file may not.
        return self._locks / f"{sha256(run_id)}.lock"

    def _header(self, run_id: str) -> RunHeader:
        row = self._read(_RUN, run_id)
        assert row is not None
        return RunHeader(*(str(value) for value in row))

    def recorded(self, run_id: str, key: str) -> Entry | None:
        row = self._read(_RECORDED, run_id, key)
        if row is None:
            return None
        stage_id, input_hash, duration, output, failure, reason = row
        return Entry(
            stage_id=str(stage_id),
            input_hash=str(input_hash),
            duration_ms=int(str(duration)),
            output=None if output is None else str(output),
            failure=None if failure is None else (str(failure), str(reason)),
        )

    def intend(self, run_id: str, key: str) -> bool:
        with self._writing() as connection:
            return connection.execute(_INTEND, (run_id, key)).rowcount == 0

    def record(self, run_id: str, key: str, entry: Entry) -> None:
        failure, reason = entry.failure or (None, None)
        values = (entry.stage_id, entry.input_hash, entry.duration_ms, entry.output)
        with self._writing() as connection:
            connection.execute(_RECORD, (run_id, key, *values, failure, reason))

    def forget_failures(self, run_id: str) -> None:
        with self._writing() as connection:
            connection.execute(_FORGET_FAILURES, (run_id,))

    def forget(self, run_id: str) -> None:
        """Removes a run for good; not while somebody runs it."""
        self._hold(run_id)
        try:
            with self._writing() as connection:
                connection.execute(_FORGET_CALLS, (run_id,))
                connection.execute(_FORGET_RUN, (run_id,))
        finally:
            self.end(run_id)

    def end(self, run_id: str) -> None:
        held = self._held.pop(run_id, None)
        if held is not None:
            os.close(held)

    def close(self) -> None:
        self._database.close()


def _same_run(run_id: str, known: RunHeader, header: RunHeader) -> None:
    for what in ("graph", "input_hash", "profile"):
        if getattr(known, what) != getattr(header, what):
            other = what.replace("_hash", "")
            raise RunConflict(f"the run {run_id!r} was begun with another {other}")
