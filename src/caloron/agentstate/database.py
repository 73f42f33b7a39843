"""The database of one agent: `state.sqlite`, which agent-state 0.3 can use as well."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from caloron.agentstate.records import encode
from caloron.errors import NotFound, StoreError, store_errors
from caloron.store.database import (
    Database,
    load_statements,
    migrations_in,
    open_read_only,
    refuse_without_file,
    store_error,
)
from caloron.store.queue import Queue

_HERE = Path(__file__).parent
MIGRATIONS = migrations_in(_HERE / "migrations", "agentstate")
#: The migrations of this version, to find a missing file.
MIGRATION_NAMES = (
    "agentstate/0001-agent-state",
    "agentstate/0002-caloron",
    "agentstate/0003-nothing-replaced",
)
#: The versions of agent-state's own tables that are known here.
VERSIONS = frozenset({"0001"})
#: Our table; `schema_migrations` holds only the versions of agent-state.
MIGRATIONS_TABLE = "caloron_migrations"
#: SQLite's busy handler is not fair: under contention a waiter can starve.
_PATIENCE_S = 30.0
SQL = load_statements(_HERE / "sql" / "work_items.sql")
_ANY_OF = "      AND kind IN (SELECT value FROM json_each(:kinds))\n"
SQL["claim_any"] = SQL["claim"].replace(_ANY_OF, "")
SQL["claim_kind"] = SQL["claim"].replace(_ANY_OF, "      AND kind = :kind\n")
QUEUE = Queue("caloron_", SQL, encode=encode, plain=True)


def require_database(where: Path) -> Path:
    """The database in a folder; it must exist."""
    path = where / "state.sqlite"
    if not path.exists():
        raise NotFound(f"there is no {path}", hint="set MF_INSTANCE_DIR, or scaffold it first")
    return path


def open_database(path: Path) -> Database:
    """Open the database; create or migrate it if necessary."""
    with store_errors(f"cannot make {path.parent}", hint="choose another MF_INSTANCE_DIR"):
        path.parent.mkdir(parents=True, exist_ok=True)
    db = Database(path, table=MIGRATIONS_TABLE, patience_s=_PATIENCE_S)
    try:
        # A list of statuses, as in the CHECK of the table, is a temporary table. One that could
        # become a file takes longer than the change itself.
        db.rows("PRAGMA temp_store = MEMORY")
        known = _versions(db)
        db.migrate(MIGRATIONS)
    except BaseException:
        db.close()
        raise
    if known:
        # agent-state had applied that one itself.
        db.migrated = tuple(name for name in db.migrated if name != MIGRATIONS[0].name)
    return db


def _versions(db: Database) -> set[str]:
    """The versions of agent-state that migrated the file; an unknown one is refused."""
    if not db.rows("SELECT 1 FROM sqlite_master WHERE name = 'schema_migrations'"):
        return set()
    versions = {str(row["version"]) for row in db.rows("SELECT version FROM schema_migrations")}
    if newer := sorted(versions - VERSIONS):
        raise StoreError(
            f"{db.path} was changed by a newer agent-state (it has {', '.join(newer)[:80]})",
            hint="use that one, or upgrade Caloron; nothing was changed",
        )
    return versions


READING = load_statements(_HERE / "sql" / "reading.sql")


def read_rows(path: Path, name: str, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of one query without changing the file; none if there is no file."""
    if not path.exists():
        refuse_without_file(path)
        return
    connection = open_read_only(path)
    try:
        for row in connection.execute(READING[name], values):
            yield {name: _text(row[name]) for name in row.keys()}  # noqa: SIM118 - of a Row
    except sqlite3.Error as error:
        tables = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'work_items'")
        if tables.fetchone() is not None:
            raise store_error(path, error) from error
    finally:
        connection.close()


def _text(value: Any) -> Any:
    """Another program may have written bytes where text belongs."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
