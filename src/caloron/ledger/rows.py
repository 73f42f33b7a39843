"""Compares the rows of a ledger with each other.

Rows are facts that nothing can derive again, so only a backup repairs what is found here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from caloron.domain.model.effects import Effect, Probe, StartWork
from caloron.domain.model.facts import Fact
from caloron.domain.model.snapshots import Snapshot
from caloron.domain.model.sprint import Sprint
from caloron.domain.model.task import Task
from caloron.store.database import load_statements

_SQL = load_statements(Path(__file__).parent / "sql" / "rows.sql")
#: The expectation about a row that cannot be decoded.
UNREADABLE = "a record of this Caloron"
#: The rows that every state of a sprint is made of.
OF_THE_STATE = ("sprints/", "tasks/", "observations/", "inbox/")


class Disagreement(NamedTuple):
    """A row that differs from what another one requires."""

    row: str
    expected: str
    found: str


class _Table(NamedTuple):
    """A table with JSON in its rows."""

    #: The name of a row in messages.
    name: str
    record: Any
    #: Columns that repeat a field of the JSON.
    columns: tuple[str, ...] = ()


_EFFECTS = ("key", "task", "kind")
_TABLES = {
    "sprints": _Table("sprints/{id}", Sprint, ("id", "number", "goal", "phase", "ended_at")),
    "tasks": _Table("tasks/{sprint}/{id}", Task, ("id", "status", "reason")),
    "observations": _Table("observations/{sprint}/{object}", Snapshot, ("object", "version")),
    "inbox": _Table("inbox/{id}", Fact),
    "cycle_actions": _Table("cycle_actions/{id} ({key})", Effect | Probe, _EFFECTS),
    "actions": _Table("actions/{id} ({key})", Effect | Probe, _EFFECTS),
    "work_items": _Table("work_items/{id}", StartWork, ("item",)),
}


def disagreements(connection: sqlite3.Connection) -> Iterator[Disagreement]:
    """Compare every row with its columns, and with the rows that it refers to."""
    for name, table in _TABLES.items():
        decoder = msgspec.json.Decoder(table.record)
        for row in connection.execute(_SQL[name]):
            target = table.name.format(**dict(row))
            try:
                record = decoder.decode(row["data"])
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                yield Disagreement(target, UNREADABLE, str(error)[:200])
                continue
            for column in table.columns:
                if (value := _field(record, column)) != row[column]:
                    yield Disagreement(f"{target}, {column}", repr(value), repr(row[column]))
    for row in connection.execute(_SQL["references"]):
        yield Disagreement(*row)


def _field(record: Any, column: str) -> Any:
    """Return the field of a record that a column repeats."""
    if column == "kind":
        return type(record).__struct_config__.tag
    value = getattr(record.work if column == "item" else record, column)
    return str(value) if isinstance(value, str) else value


def newest_observation(connection: sqlite3.Connection) -> sqlite3.Row | None:
    """Return the sprint, object and version of the newest observation."""
    row: sqlite3.Row | None = connection.execute(_SQL["newest_observation"]).fetchone()
    return row
