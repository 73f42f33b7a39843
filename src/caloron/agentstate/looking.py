"""Looking into an agent's file without changing it, row by row, whatever program made it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from caloron.store.database import open_read_only, refuse_without_file, store_error
from caloron.store.statements import load_statements

STATEMENTS = load_statements(Path(__file__).parent / "sql" / "looking.sql")


def look(path: Path, name: str, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of one query; none where there is no file yet."""
    if not path.exists():
        refuse_without_file(path)
        return
    connection = open_read_only(path)
    try:
        for row in connection.execute(STATEMENTS[name], values):
            yield {name: _text(row[name]) for name in row.keys()}  # noqa: SIM118 - of a Row
    except sqlite3.Error as error:
        if not _is_empty(connection):
            raise store_error(path, error) from error
    finally:
        connection.close()


def _text(value: Any) -> Any:
    """Another program may have written bytes where text belongs."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _is_empty(connection: sqlite3.Connection) -> bool:
    """A file in which nobody has made the tables yet."""
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'work_items'")
    return found.fetchone() is None
