"""What commands that only read select from a ledger.

Standard library only: `status`, `why` and `history` must start fast. The queries are in
`sql/views.sql`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from caloron.ledger.locate import ProjectPaths
from caloron.ledger.reading import open_ledger
from caloron.store.database import load_statements

_SQL = load_statements(Path(__file__).parent / "sql" / "views.sql")


@contextmanager
def ledger_if_any(paths: ProjectPaths) -> Iterator[sqlite3.Connection | None]:
    """Open the ledger of a project; None before its first sprint."""
    connection = open_ledger(paths.ledger) if paths.ledger.exists() else None
    try:
        yield connection
    finally:
        if connection is not None:
            connection.close()


def rows(connection: sqlite3.Connection, query: str, **values: Any) -> list[sqlite3.Row]:
    """Return the rows of a named query."""
    return connection.execute(_SQL[query], values).fetchall()


def row(connection: sqlite3.Connection, query: str, **values: Any) -> sqlite3.Row | None:
    """Return the first row of a named query."""
    first: sqlite3.Row | None = connection.execute(_SQL[query], values).fetchone()
    return first


def value(connection: sqlite3.Connection, query: str, **values: Any) -> Any:
    """Return the first value of a named query; None without a row."""
    first = row(connection, query, **values)
    return first[0] if first is not None else None


def counts(connection: sqlite3.Connection, *tables: str) -> dict[str, int]:
    """Return the number of rows of each table; 0 for a table that does not exist."""
    existing = {row["name"] for row in rows(connection, "tables")}
    return {
        table: int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
        if table in existing
        else 0
        for table in tables
    }


def ticked_sprints(connection: sqlite3.Connection) -> list[str]:
    """Return the sprints that `caloron tick` drives."""
    return [row["key"] for row in rows(connection, "keys", prefix="visited/")]
