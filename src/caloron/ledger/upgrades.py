"""The form of the JSON in the ledger's rows, and how rows of an older version get today's form.

The form has a number, `data_version` in the table `kv`; a ledger without a number has version 1,
the form of Caloron 0.4.0. A program that writes upgrades all rows once, in the transaction that
migrates the ledger: a crash leaves the old form or the new one, never both. A program that only
reads changes nothing: temporary views upgrade each row when it is read, so SQL with JSON paths
sees today's form as well.

Append a step to `STEPS` to rename or remove a stored field, or to change its type. A new field with
a default needs no step. Events are append-only, so their readers must understand every form.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from caloron.errors import HeldByAnother, StoreError
from caloron.store.database import Migration
from caloron.store.lock import holder

#: Changes one row, of the table that is named, from one version to the next.
Step = Callable[[str, dict[str, Any]], dict[str, Any]]
#: The first makes version 2 of version 1, and so on. They are never changed once released.
STEPS: tuple[Step, ...] = ()
#: Where the table `kv` has the number.
DATA_VERSION = "data_version"
#: Tables with JSON in a row that may be written again, and its column.
_STORED = {
    "sprints": "data",
    "tasks": "data",
    "observations": "data",
    "inbox": "data",
    "actions": "data",
    "cycle_actions": "data",
    "work_items": "payload",
}


def upgrade(table: str, data: dict[str, Any], from_version: int) -> dict[str, Any]:
    """Return a row's data in today's form."""
    for step in STEPS[from_version - 1 :]:
        data = step(table, data)
    return data


def data_migrations(steps: Sequence[Step]) -> tuple[Migration, ...]:
    """One migration per step, so that a Caloron without the step refuses the ledger."""
    return tuple(
        Migration(
            f"ledger/data-{version}",
            f"INSERT INTO kv VALUES ('{DATA_VERSION}', '{version}')"
            " ON CONFLICT (key) DO UPDATE SET value = excluded.value;\n",
            partial(_rewrite, step),
        )
        for version, step in enumerate(steps, 2)
    )


def show_in_todays_form(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Let a connection that only reads see rows of an older version in today's form."""
    newest = 1 + len(STEPS)
    if version > newest:
        raise StoreError(
            f"{path} was written by a newer Caloron (data version {version}, this one reads"
            f" {newest})",
            hint="upgrade Caloron; nothing was changed",
        )
    if version == newest:
        return
    _define(connection, lambda table, data: upgrade(table, data, version))
    for table, column in _STORED.items():
        columns = [row[1] for row in connection.execute(f"PRAGMA main.table_info({table})")]
        shown = [f"upgraded('{table}', {c}) AS {c}" if c == column else c for c in columns]
        if columns:
            view = f"SELECT {', '.join(shown)} FROM main.{table}"
            connection.execute(f"CREATE TEMP VIEW {table} AS {view}")


def _rewrite(step: Step, connection: sqlite3.Connection) -> None:
    """Change every row; refused while the engine of an older Caloron would write the old form."""
    path = Path(connection.execute("PRAGMA database_list").fetchone()[2])
    engine = holder(path.with_name("engine.lock"))
    if engine is not None and engine.get("pid") != os.getpid():
        raise HeldByAnother(
            f"{path} has to be upgraded, and an older Caloron is at work with it",
            hint="wait until its sprint has ended, or stop it: caloron stop",
        )
    _define(connection, step)
    for table, column in _STORED.items():
        connection.execute(f"UPDATE {table} SET {column} = upgraded('{table}', {column})")


def _define(connection: sqlite3.Connection, change: Step) -> None:
    def upgraded(table: str, stored: bytes | str) -> bytes | str:
        try:
            data = json.loads(stored)
        except ValueError:
            # `state verify` names a damaged row; it must not keep the others from being read.
            return stored
        text = json.dumps(change(table, data), separators=(",", ":"))
        return text.encode() if isinstance(stored, bytes) else text

    connection.create_function("upgraded", 2, upgraded, deterministic=True)
