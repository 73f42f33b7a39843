"""Values that are kept between runs, in a database of the directory that is given."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from caloron.graph.errors import StageFailed
from caloron.graph.jsontext import Json, compact
from caloron.graph.sqlite import Database
from caloron.graph.stdlib.given import field, optional, text

_TABLE = """CREATE TABLE IF NOT EXISTS kv (
  namespace TEXT NOT NULL DEFAULT '', key TEXT NOT NULL, value TEXT NOT NULL,
  PRIMARY KEY (namespace, key))"""
_SET = "INSERT INTO kv VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
_GET = "SELECT value FROM kv WHERE namespace = ? AND key = ?"
_DELETE = "DELETE FROM kv WHERE namespace = ? AND key = ?"
_LIST = "SELECT key FROM kv WHERE namespace = ? AND key LIKE ? || '%' ORDER BY key"


class KeyValues:
    """The five kv stages, on a table of the shape that Noether's own database has."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def set(self, given: Json) -> Json:
        self._execute(_SET, given, compact(field(given, "value")))
        return "ok"

    def get(self, given: Json) -> Json:
        rows, _ = self._execute(_GET, given)
        return json.loads(rows[0][0]) if rows else None

    def delete(self, given: Json) -> Json:
        _, changed = self._execute(_DELETE, given)
        return changed > 0

    def exists(self, given: Json) -> Json:
        rows, _ = self._execute(_GET, given)
        return bool(rows)

    def keys(self, given: Json) -> Json:
        """Per cent and underscore in a prefix are wild cards, as in Noether."""
        prefix = optional(given, "prefix")
        asked = {
            "key": prefix if isinstance(prefix, str) else "",
            "namespace": optional(given, "namespace"),
        }
        rows, _ = self._execute(_LIST, asked)
        return [row[0] for row in rows]

    def _execute(self, statement: str, given: Json, *more: str) -> tuple[list[tuple[str]], int]:
        space = optional(given, "namespace")
        values = (space if isinstance(space, str) else "", text(given, "key"), *more)
        if self._directory is None:
            raise StageFailed("no directory was given in which values can be kept")
        try:
            # Opened for each call: nothing tells when the last one was made.
            path = self._directory / "kv.db"
            database = Database(path, _TABLE, survives_power_loss=True)
            with closing(database), database.transaction() as connection:
                cursor = connection.execute(statement, values)
                return cursor.fetchall(), cursor.rowcount
        except (sqlite3.Error, OSError) as error:
            raise StageFailed(f"the store of values cannot be used: {error}") from error
