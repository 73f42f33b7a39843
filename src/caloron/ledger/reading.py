"""Reads a ledger without changing it, for commands that must answer at once.

Standard library only: `status`, `why` and `history` import nothing heavier.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from caloron.errors import NotFound, StoreError
from caloron.ledger.upgrades import DATA_VERSION, show_in_todays_form
from caloron.store.database import load_statements, open_read_only, restore_hint, store_error
from caloron.store.files import read_plain

if TYPE_CHECKING:
    from caloron.domain.model.sprint import State
    from caloron.domain.reporting.waiting import Outage
    from caloron.ledger.locate import ProjectPaths

_SQL = load_statements(Path(__file__).parent / "sql" / "reading.sql")
#: The selections of commands that only read.
_VIEWS = load_statements(Path(__file__).parent / "sql" / "views.sql")
#: Tables of caches that an older ledger does not have; a reader sees them empty.
_LATER_TABLES = ("entries", "records")


def open_ledger(path: Path) -> sqlite3.Connection:
    """Open a ledger read-only, in today's form; refuse the ledger of another project."""
    known = known_identity(path)
    connection = open_read_only(path)
    try:
        refuse_foreign(path, _value(connection, "ledger_id") if known else "", known)
        show_in_todays_form(connection, path, int(_value(connection, DATA_VERSION) or 1))
        for table in _LATER_TABLES:
            if not connection.execute(_SQL["has_table"], {"name": table}).fetchone():
                connection.execute(_SQL[f"empty_{table}"])
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error):
            raise store_error(path, error) from error
        raise
    return connection


def _value(connection: sqlite3.Connection, key: str) -> str:
    try:
        row = connection.execute(_SQL["value"], {"key": key}).fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        # A database without this table is not a ledger.
        row = None
    return str(row["value"]) if row else ""


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
    return connection.execute(_VIEWS[query], values).fetchall()


def row(connection: sqlite3.Connection, query: str, **values: Any) -> sqlite3.Row | None:
    """Return the first row of a named query."""
    first: sqlite3.Row | None = connection.execute(_VIEWS[query], values).fetchone()
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


class LightState(NamedTuple):
    """The state of a sprint as far as `why` reads it, and the work that was started before."""

    state: State
    #: Work for which an agent was started at least once.
    begun: frozenset[str]


def light_state(connection: sqlite3.Connection, running: str = "") -> LightState:
    """Read the sprint that runs, else the last one."""
    # `status` opens a ledger without the domain.
    from caloron.domain.model.status import Status, Step

    row = connection.execute(_SQL["sprint"], {"running": running}).fetchone()
    if row is None:
        raise NotFound("this project has no sprint yet", hint='caloron sprint "<goal>"')
    sprint = _read(row["data"])
    approval = sprint.planning.approval
    sprint.plan_issue = approval.number if approval else None
    sprint.plan_declined = approval.declined if approval else ""
    sprint.availability.providers = vars(sprint.availability.providers)
    tasks = [_read(t["data"]) for t in connection.execute(_SQL["tasks"], {"sprint": sprint.id})]
    for task in tasks:
        task.id, task.status, task.step = task.plan.id, Status(task.status), Step(task.step)
    scope = {"scope": f"{sprint.id}/"}
    queued, ended, begun = (
        frozenset(row[0] for row in connection.execute(_SQL[name], scope))
        for name in ("queued", "ended", "begun")
    )
    state: Any = _Row(sprint=sprint, tasks={t.id: t for t in tasks}, queued=queued, ended=ended)
    return LightState(state, begun)


def _read(data: bytes) -> Any:
    return json.loads(data, object_hook=lambda fields: _Row(**fields))
