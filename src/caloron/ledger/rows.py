"""Whether the rows of a ledger agree with each other; each disagreement is one line.

Rows are facts: nobody writes them anew. What is found here is put right by a copy of the ledger.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from caloron.domain.model.effects import Effect, Probe, StartWork
from caloron.domain.model.facts import Fact
from caloron.domain.model.snapshots import Snapshot
from caloron.domain.model.sprint import Sprint
from caloron.domain.model.task import Task

_sprint_of = msgspec.json.Decoder(Sprint).decode
_task_of = msgspec.json.Decoder(Task).decode
_snapshot_of = msgspec.json.Decoder(Snapshot).decode
_fact_of = msgspec.json.Decoder(Fact).decode
_effect_of = msgspec.json.Decoder(Effect | Probe).decode
_start_of = msgspec.json.Decoder(StartWork).decode

#: What a row should be that cannot even be read.
UNREADABLE = "a record of this Caloron"
#: The rows that every state of a sprint is made of.
OF_THE_STATE = ("sprints/", "tasks/", "observations/", "inbox/")


class Disagreement(NamedTuple):
    """A row that does not say what another one says."""

    row: str
    expected: str
    found: str


def disagreements(connection: sqlite3.Connection) -> Iterator[Disagreement]:
    """Every sprint, task, observation, waiting fact, effect and work item against its sprint."""
    sprints = {str(row["id"]) for row in connection.execute("SELECT id FROM sprints")}
    yield from _sprints(connection)
    yield from _tasks(connection)
    yield from _observations(connection)
    yield from _facts(connection)
    yield from _effects(connection)
    yield from _items(connection, sprints)


def _read(decode: Any, data: Any, row: str) -> tuple[Any, list[Disagreement]]:
    try:
        return decode(data), []
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return None, [Disagreement(row, UNREADABLE, str(error)[:200])]


def _same(row: str, columns: dict[str, tuple[Any, Any]]) -> Iterator[Disagreement]:
    for name, (inside, column) in columns.items():
        if inside != column:
            yield Disagreement(f"{row}, {name}", repr(inside), repr(column))


def _sprints(connection: sqlite3.Connection) -> Iterator[Disagreement]:
    for row in connection.execute("SELECT * FROM sprints ORDER BY number"):
        name = f"sprints/{row['id']}"
        sprint, problems = _read(_sprint_of, row["data"], name)
        yield from problems
        if sprint is not None:
            columns = ("id", "number", "goal", "phase", "ended_at")
            yield from _same(name, {c: (getattr(sprint, c), row[c]) for c in columns})


def _tasks(connection: sqlite3.Connection) -> Iterator[Disagreement]:
    for row in connection.execute("SELECT * FROM tasks ORDER BY sprint, position"):
        name = f"tasks/{row['sprint']}/{row['id']}"
        task, problems = _read(_task_of, row["data"], name)
        yield from problems
        if task is not None:
            told = {c: (str(getattr(task, c)), row[c]) for c in ("id", "status", "reason")}
            yield from _same(name, told)


def _observations(connection: sqlite3.Connection) -> Iterator[Disagreement]:
    for row in connection.execute("SELECT * FROM observations"):
        name = f"observations/{row['sprint']}/{row['object']}"
        seen, problems = _read(_snapshot_of, row["data"], name)
        yield from problems
        if seen is not None:
            told = {c: (getattr(seen, c), row[c]) for c in ("object", "version")}
            yield from _same(name, told)


def _facts(connection: sqlite3.Connection) -> Iterator[Disagreement]:
    for row in connection.execute("SELECT * FROM inbox ORDER BY id"):
        yield from _read(_fact_of, row["data"], f"inbox/{row['id']}")[1]


_OF_NO_TASK = "SELECT 1 FROM tasks WHERE sprint = ? AND id = ?"


def _effects(connection: sqlite3.Connection) -> Iterator[Disagreement]:
    for row in connection.execute("SELECT * FROM cycle_actions ORDER BY id"):
        yield from _effect(f"cycle_actions/{row['id']} ({row['key']})", row)
    for row in connection.execute("SELECT * FROM actions ORDER BY id").fetchall():
        name = f"actions/{row['id']} ({row['key']})"
        yield from _effect(name, row)
        is_open = row["state"] in ("planned", "intended")
        known = connection.execute(_OF_NO_TASK, (row["sprint"], row["task"])).fetchone()
        if row["task"] and is_open and known is None:
            yield Disagreement(name, f"a task of {row['sprint']}", row["task"])


def _effect(name: str, row: sqlite3.Row) -> Iterator[Disagreement]:
    effect, problems = _read(_effect_of, row["data"], name)
    yield from problems
    if effect is not None:
        kind = type(effect).__struct_config__.tag
        told = {"key": (effect.key, row["key"]), "task": (effect.task, row["task"])}
        yield from _same(name, told | {"kind": (kind, row["kind"])})


_ITEMS = """
SELECT w.id, w.status, w.payload, l.item, l.token
FROM work_items w LEFT JOIN leases l ON l.item = w.id ORDER BY w.id
"""


def _items(connection: sqlite3.Connection, sprints: set[str]) -> Iterator[Disagreement]:
    for row in connection.execute(_ITEMS):
        name = f"work_items/{row['id']}"
        start, problems = _read(_start_of, row["payload"], name)
        yield from problems
        if start is not None:
            yield from _same(name, {"item": (start.work.item, row["id"])})
        if row["id"].partition("/")[0] not in sprints:
            yield Disagreement(name, "a sprint that it belongs to", "none")
        if row["item"] is None:
            yield Disagreement(name, "a lease", "none")
        elif row["status"] == "in_flight" and not row["token"]:
            yield Disagreement(name, "a token, as somebody works on it", "none")
