"""Durable runs: what each call gave is on disk before the next one begins."""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from caloron.graph.errors import JournalError, RunConflict, RunInUse
from caloron.graph.json_text import sha256
from caloron.graph.runtime.protocols import JournalEntry, RunHeader
from caloron.graph.storage.sqlite import Database

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
  run_id TEXT PRIMARY KEY, graph TEXT NOT NULL, input_hash TEXT NOT NULL, profile TEXT NOT NULL
);;
CREATE TABLE IF NOT EXISTS calls (
  run_id TEXT NOT NULL REFERENCES runs, key TEXT NOT NULL, stage_id TEXT, input_hash TEXT,
  duration_ms INTEGER, output TEXT, failure TEXT, reason TEXT,
  PRIMARY KEY (run_id, key)) WITHOUT ROWID;;
CREATE TABLE IF NOT EXISTS uses (run_id TEXT PRIMARY KEY, at INTEGER NOT NULL)
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
#: Runs of a version that did not note their use are as young as this one.
_USE_ALL = "INSERT OR IGNORE INTO uses SELECT run_id, ? FROM runs"
_UNUSED = "SELECT run_id FROM uses WHERE at < ?"
_FORGET_CALLS = "DELETE FROM calls WHERE run_id = ?"
_FORGET_RUN = "DELETE FROM runs WHERE run_id = ?"
_FORGET_USE = "DELETE FROM uses WHERE run_id = ?"
#: A run that was not begun or resumed for so long is removed.
_KEPT_SECONDS = 30 * 24 * 3600


class SqliteJournal:
    """A journal in a directory; it survives `kill -9` and power loss.

    The lock of a run ends with the process that holds it, so that the next one can resume at once.
    Runs that were not used for 30 days are removed.
    """

    def __init__(self, directory: Path, *, now: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._locks = directory / "locks"
        self._held: dict[str, int] = {}
        self._now = now
        with self._described("used"):
            for folder in (directory, self._locks):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                folder.chmod(0o700)
            path = directory / "journal.db"
            self._database = Database(path, _SCHEMA, survives_power_loss=True)

    @contextmanager
    def _described(self, how: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            reason = f"the journal {self._directory} cannot be {how}: {error}"
            raise JournalError(reason) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A run must not go on when what it did cannot be kept."""
        with self._described("written"), self._database.transaction() as connection:
            yield connection

    def _read(self, statement: str, *values: str) -> tuple[object, ...] | None:
        with self._described("read"):
            return self._database.read(statement, values)

    def begin(self, run_id: str, header: RunHeader) -> None:
        self._hold(run_id)
        try:
            with self._writing() as connection:
                values = (run_id, header.graph, header.input_hash, header.profile)
                connection.execute(_ADD_RUN, values)
                connection.execute(_USE, (run_id, int(self._now())))
                self._prune(connection)
            self._remove_abandoned_locks()
            _same_run(run_id, self._header(run_id), header)
        except BaseException:
            self.end(run_id)
            raise

    def _prune(self, connection: sqlite3.Connection) -> None:
        now = int(self._now())
        connection.execute(_USE_ALL, (now,))
        for (unused,) in connection.execute(_UNUSED, (now - _KEPT_SECONDS,)).fetchall():
            for statement in (_FORGET_CALLS, _FORGET_RUN, _FORGET_USE):
                connection.execute(statement, (unused,))

    def _hold(self, run_id: str) -> None:
        path = self._lock_file(run_id)
        with self._described("locked"):
            lock = _locked(path)
        if lock is None:
            raise RunInUse(f"another process runs {run_id!r} at this moment")
        self._held[run_id] = lock

    def _remove_abandoned_locks(self) -> None:
        """Locks of processes that were killed; one that is held is left alone."""
        own = {self._lock_file(run_id) for run_id in self._held}
        for path in self._locks.glob("*.lock"):
            with suppress(OSError):
                # Another process may remove it first.
                if path not in own and (lock := _locked(path)) is not None:
                    path.unlink(missing_ok=True)
                    os.close(lock)

    def _lock_file(self, run_id: str) -> Path:
        # A run id may hold anything; the name of a file may not.
        return self._locks / f"{sha256(run_id)}.lock"

    def _header(self, run_id: str) -> RunHeader:
        row = self._read(_RUN, run_id)
        assert row is not None
        return RunHeader(*(str(value) for value in row))

    def recorded(self, run_id: str, key: str) -> JournalEntry | None:
        row = self._read(_RECORDED, run_id, key)
        if row is None:
            return None
        stage_id, input_hash, duration, output, failure, reason = row
        return JournalEntry(
            stage_id=str(stage_id),
            input_hash=str(input_hash),
            duration_ms=int(str(duration)),
            output=None if output is None else str(output),
            failure=None if failure is None else (str(failure), str(reason)),
        )

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
        """Removes a run for good; not while somebody runs it."""
        self._hold(run_id)
        try:
            with self._writing() as connection:
                for statement in (_FORGET_CALLS, _FORGET_RUN, _FORGET_USE):
                    connection.execute(statement, (run_id,))
        finally:
            self.end(run_id)

    def end(self, run_id: str) -> None:
        held = self._held.pop(run_id, None)
        if held is not None:
            self._lock_file(run_id).unlink(missing_ok=True)
            os.close(held)

    def close(self) -> None:
        self._database.close()


def _locked(path: Path) -> int | None:
    """A descriptor that holds the lock of this file; None if another process holds it."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_ino == os.fstat(lock).st_ino:
                return lock
        except BlockingIOError:
            os.close(lock)
            return None
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(lock)
            raise
        # The holder before us removed the file: the lock of a removed file keeps no one out.
        os.close(lock)


def _unhandled(failed: Mapping[str, bool]) -> list[str]:
    """Failed calls that nothing came after.

    A failure that was followed by another attempt, or by another call of the same stage, was dealt
    with then. Repeating it would repeat what succeeded since.
    """
    steps = {key[: step.end()] for key in failed for step in _STEP.finditer(key) if step[1]}
    return [key for key, is_failure in failed.items() if is_failure and not _passed(key, steps)]


def _passed(key: str, steps: Container[str]) -> bool:
    """Whether any attempt or call that a key is part of has a follower."""
    return any(
        f"{key[: step.start(1)]}{int(step[1]) + 1}{key[step.end(1) : step.end()]}" in steps
        for step in _STEP.finditer(key)
        if step[1]
    )


def _same_run(run_id: str, known: RunHeader, header: RunHeader) -> None:
    for what in ("graph", "input_hash", "profile"):
        if getattr(known, what) != getattr(header, what):
            other = what.replace("_hash", "")
            raise RunConflict(f"the run {run_id!r} was begun with another {other}")
