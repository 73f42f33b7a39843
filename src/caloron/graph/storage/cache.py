"""Caches of the answers of pure stages: in memory, and in a file."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from caloron.graph.runtime.protocols import CacheKey
from caloron.graph.storage.sqlite import Database


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
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
            return found

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
  PRIMARY KEY (stage_id, code_hash, input_hash)) WITHOUT ROWID;;
CREATE INDEX IF NOT EXISTS answers_by_use ON answers (used);;
CREATE TABLE IF NOT EXISTS totals (entries INTEGER NOT NULL, characters INTEGER NOT NULL);;
INSERT INTO totals SELECT 0, 0 WHERE NOT EXISTS (SELECT 1 FROM totals);;
CREATE TRIGGER IF NOT EXISTS answer_added AFTER INSERT ON answers BEGIN
  UPDATE totals SET entries = entries + 1, characters = characters + length(new.output);
END;;
CREATE TRIGGER IF NOT EXISTS answer_gone AFTER DELETE ON answers BEGIN
  UPDATE totals SET entries = entries - 1, characters = characters - length(old.output);
END
"""
_KEY = "stage_id = ? AND code_hash = ? AND input_hash = ?"
_GET = f"SELECT output, used FROM answers WHERE {_KEY}"
_USE = f"UPDATE answers SET used = ? WHERE {_KEY}"
_PUT = "INSERT INTO answers VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_TOTALS = "SELECT entries, characters FROM totals"
_FORGET = """
DELETE FROM answers WHERE (stage_id, code_hash, input_hash) IN (
  SELECT stage_id, code_hash, input_hash FROM answers ORDER BY used LIMIT ?)
"""
#: Use is written down no more often than this, so that reading stays reading.
_SECONDS_BETWEEN_USES = 60
#: This part is forgotten at once when the file is full, so that it is not full again at once.
_FORGOTTEN_PART = 10


class SqliteCache:
    """Answers in a file that any number of processes share; the longest unused go first.

    A cache never fails a run: what cannot be read is not known, what cannot be written is not
    kept, and `trouble` tells the last reason.
    """

    def __init__(
        self,
        path: Path,
        *,
        most_entries: int = 100_000,
        most_characters: int = 256 * 1024 * 1024,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._most_entries = most_entries
        self._most_characters = most_characters
        self._now = now
        self.trouble = ""
        self._database = self._opened(path)

    def _opened(self, path: Path) -> Database | None:
        try:
            return Database(path, _SCHEMA, survives_power_loss=False)
        except (sqlite3.OperationalError, OSError) as error:
            self.trouble = str(error)
            return None
        except sqlite3.DatabaseError as error:
            # Nothing in a cache is worth keeping when its file is damaged.
            self.trouble = str(error)
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            return Database(path, _SCHEMA, survives_power_loss=False)

    def get(self, key: CacheKey) -> str | None:
        if self._database is None:
            return None
        place = (key.stage_id, key.code_version, key.input_hash)
        try:
            row = self._database.read(_GET, place)
            if row is None:
                return None
            output, used = row
            if isinstance(used, int) and self._now() - used > _SECONDS_BETWEEN_USES:
                with self._database.transaction() as connection:
                    connection.execute(_USE, (int(self._now()), *place))
            return str(output)
        except sqlite3.Error as error:
            self.trouble = str(error)
            return None

    def put(self, key: CacheKey, text: str) -> None:
        if self._database is None or len(text) > self._most_characters // _FORGOTTEN_PART:
            return
        entry = (key.stage_id, key.code_version, key.input_hash, text, int(self._now()))
        try:
            with self._database.transaction() as connection:
                connection.execute(_PUT, entry)
                self._make_room(connection)
        except sqlite3.Error as error:
            self.trouble = str(error)

    def _make_room(self, connection: sqlite3.Connection) -> None:
        entries, characters = connection.execute(_TOTALS).fetchone()
        while entries and (entries > self._most_entries or characters > self._most_characters):
            connection.execute(_FORGET, (max(1, entries // _FORGOTTEN_PART),))
            entries, characters = connection.execute(_TOTALS).fetchone()

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
