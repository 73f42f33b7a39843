"""Reads a ledger without changing it, for commands that must answer at once.

Standard library only: `status`, `why` and `history` import nothing heavier.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from caloron.errors import StoreError
from caloron.ledger.upgrades import DATA_VERSION, show_in_todays_form
from caloron.store.database import load_statements, open_read_only, restore_hint, store_error
from caloron.store.files import read_plain

if TYPE_CHECKING:
    from caloron.domain.model.sprint import Sprint, State
    from caloron.domain.reporting.waiting import Outage
    from caloron.ledger.locate import ProjectPaths

_SQL = load_statements(Path(__file__).parent / "sql" / "views.sql")
#: Tables of caches that an older ledger does not have; a reader sees them empty.
_LATER_TABLES = frozenset({"entries", "records"})


def open_ledger(path: Path) -> sqlite3.Connection:
    """Open a ledger read-only, in today's form; refuse the ledger of another project."""
    known = known_identity(path)
    connection = open_read_only(path)
    try:
        refuse_foreign(path, _value(connection, "ledger_id") if known else "", known)
        show_in_todays_form(connection, path, int(_value(connection, DATA_VERSION) or 1))
        for table in _LATER_TABLES - _tables(connection):
            connection.execute(_SQL[f"empty_{table}"])
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error):
            raise store_error(path, error) from error
        raise
    return connection


def _value(connection: sqlite3.Connection, key: str) -> str:
    try:
        return str(value(connection, "kv", key=key) or "")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        # A database without this table is not a ledger.
        return ""


def known_identity(path: Path) -> str:
    """Return the identity that is stored beside the ledger; empty if there is none."""
    try:
        return read_plain(path.with_suffix(".id")).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return ""


def refuse_foreign(path: Path, own: str, known: str) -> None:
    """Refuse a ledger whose identity differs from the one stored beside it."""
    beside = path.with_suffix(".id")
    if known and known != own:
        raise StoreError(
            f"{path} is not the ledger that this project had: its identity is"
            f" {own or 'missing'}, {beside.name} names {known[:40]!r}",
            hint=f"{restore_hint(path)}; if you replaced it on purpose, delete {beside}",
        )


def ledger_if_any(paths: ProjectPaths) -> AbstractContextManager[sqlite3.Connection | None]:
    """Open the ledger of a project; None before its first sprint."""
    return closing(open_ledger(paths.ledger)) if paths.ledger.exists() else nullcontext()


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
    existing = _tables(connection)
    return {
        table: int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
        if table in existing
        else 0
        for table in tables
    }


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {row["name"] for row in rows(connection, "tables")}


def ticked_sprints(connection: sqlite3.Connection) -> list[str]:
    """Return the sprints that `caloron tick` drives."""
    return [row["key"] for row in rows(connection, "keys", prefix="visited/")]


def outage_key(sprint: str) -> str:
    return f"forge_outage/{sprint}"


def read_outage(connection: sqlite3.Connection, sprint: str) -> Outage | None:
    """Return the outage of the forge that the last engine reported, if it still lasts."""
    stored = _value(connection, outage_key(sprint))
    if not stored:
        return None
    from caloron.domain.reporting.waiting import Outage

    return Outage(*json.loads(stored))


class _Row(SimpleNamespace):
    """The JSON of a row with attributes; a field that the row does not have is None.

    Building the typed structs costs more than all the reading.
    """

    def __getattr__(self, name: str) -> None:
        return None


def light_state(connection: sqlite3.Connection, running: str = "") -> State | None:
    """Read the sprint that runs, else the last one, without the work that waits in the queue."""
    data = value(connection, "light_sprint", running=running)
    if data is None:
        return None
    sprint = _light_sprint(data)
    tasks = []
    for row in rows(connection, "light_tasks", sprint=sprint.id):
        task = _read(row["data"])
        task.id, task.status = task.plan.id, row["status"]
        tasks.append(task)
    state: Any = _Row(sprint=sprint, tasks={task.id: task for task in tasks})
    return cast("State", state)


def _light_sprint(data: bytes) -> Any:
    sprint = _read(data)
    approval = sprint.planning.approval
    sprint.plan_issue = approval.number if approval else None
    sprint.plan_declined = approval.declined if approval else ""
    sprint.availability.providers = vars(sprint.availability.providers)
    return sprint


def add_queue(connection: sqlite3.Connection, state: State) -> frozenset[str]:
    """Add the queue to a light state; return the work for which an agent was ever started."""
    # `status` opens a ledger without the domain and the queue.
    from caloron.domain.model.status import Step
    from caloron.store import queue

    light: Any = state.tasks
    for task in light.values():
        task.step = Step(task.step)
        task.status = task.step.status
    scope = f"{state.sprint.id}/"
    state.queued, state.ended = queue.pending(connection, scope), queue.ended(connection, scope)
    return frozenset(queue.attempts(connection, scope))


def last_sprints(connection: sqlite3.Connection, limit: int) -> Iterator[tuple[Sprint, int, int]]:
    """Return the newest sprints, each with the number of its done tasks and of all tasks."""
    for row in rows(connection, "history", limit=limit):
        yield _light_sprint(row["data"]), row["done"], row["total"]


def _read(data: bytes) -> Any:
    return json.loads(data, object_hook=lambda fields: _Row(**fields))
