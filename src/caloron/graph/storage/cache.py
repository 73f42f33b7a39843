"""Caches of the answers of pure stages: in memory, and in a file."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from caloron.errors import StoreError
from caloron.graph.runtime.protocols import CacheKey
from caloron.graph.storage.sqlite import open_database
from caloron.store.database import Database, is_damage


class MemoryCache:
    """The most recently used answers."""

    def __init__(self, most_entries: int = 10_000, most_characters: int = 64 * 1024 * 1024) -> None:
        self._most_entries = most_entries
        self._most_characters = most_characters
        self._entries: OrderedDict[CacheKey, str] = OrderedDict()
        self._characters = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: CacheKey) -> str | None:
        with self._lock:
            text = self._entries.get(key)
            if text is not None:
                self._entries.move_to_end(key)
            return text

    def put(self, key: CacheKey, text: str) -> None:
        if len(text) > self._most_characters:
            return
        with self._lock:
            self._characters += len(text) - len(self._entries.pop(key, ""))
            self._entries[key] = text
            while len(self._entries) > self._most_entries or (
                self._characters > self._most_characters
            ):
                _, oldest = self._entries.popitem(last=False)
                self._characters -= len(oldest)


_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
  stage_id TEXT NOT NULL, code_hash TEXT NOT NULL, input_hash TEXT NOT NULL,
  output TEXT NOT NULL, used INTEGER NOT NULL,
  PRIMARY KEY (stage_id, code_hash, input_hash)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS answers_by_use ON answers (used);
"""
_KEY = "stage_id = ? AND code_hash = ? AND input_hash = ?"
_GET = f"SELECT output, used FROM answers WHERE {_KEY}"
_USE = f"UPDATE answers SET used = ? WHERE {_KEY}"
_PUT = "INSERT INTO answers VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_SIZE = """
SELECT (p.page_count - f.freelist_count) * s.page_size
FROM pragma_page_count p, pragma_freelist_count f, pragma_page_size s
"""
_FORGET = """
DELETE FROM answers WHERE (stage_id, code_hash, input_hash) IN (
  SELECT stage_id, code_hash, input_hash FROM answers
  ORDER BY used LIMIT (SELECT 1 + count(*) / :part FROM answers))
"""
#: The time of use is stored no more often than this, so that most reads write nothing.
_SECONDS_BETWEEN_USES = 60
#: A full file loses this part of its entries, so that the next one does not find it full again.
_FORGOTTEN_PART = 10


class SqliteCache:
    """Answers in a file that any number of processes share; the longest unused go first.

    A cache never fails a run: an answer that cannot be read is made again, an answer that cannot
    be written is not kept, and `trouble` has the last reason.
    """

    def __init__(
        self,
        path: Path,
        *,
        most_bytes: int = 256 * 1024 * 1024,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._most_bytes = most_bytes
        self._now = now
        self.trouble = ""
        self._database = self._open(path)

    def _open(self, path: Path) -> Database | None:
        try:
            return open_database(path, _SCHEMA, survives_power_loss=False)
        except (StoreError, OSError) as error:
            self.trouble = str(error)
            # A refusal without a cause: the file is gone, and its log is not.
            if not (is_damage(error) or (isinstance(error, StoreError) and not error.__cause__)):
                return None
        # Nothing in a cache is worth keeping when its file is damaged.
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return open_database(path, _SCHEMA, survives_power_loss=False)

    def get(self, key: CacheKey) -> str | None:
        if self._database is None:
            return None
        columns = (key.stage_id, key.code_version, key.input_hash)
        try:
            row = self._database.row(_GET, columns)
            if row is None:
                return None
            if self._now() - row["used"] > _SECONDS_BETWEEN_USES:
                with self._database.transaction("graph.use") as connection:
                    connection.execute(_USE, (int(self._now()), *columns))
            return str(row["output"])
        except StoreError as error:
            self.trouble = str(error)
            return None

    def put(self, key: CacheKey, text: str) -> None:
        if self._database is None or len(text) > self._most_bytes // _FORGOTTEN_PART:
            return
        entry = (key.stage_id, key.code_version, key.input_hash, text, int(self._now()))
        try:
            with self._database.transaction("graph.remember") as connection:
                connection.execute(_PUT, entry)
                self._make_room(connection)
        except StoreError as error:
            self.trouble = str(error)

    def _make_room(self, connection: sqlite3.Connection) -> None:
        while connection.execute(_SIZE).fetchone()[0] > self._most_bytes:
            if not connection.execute(_FORGET, {"part": _FORGOTTEN_PART}).rowcount:
                return

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
