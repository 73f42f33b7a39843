"""Finds damage in a database: pages, references, tables, indexes and triggers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from caloron.store.database import Migration, applied_in, run_script

_MAX_LINES = 20


class Damage(NamedTuple):
    """One thing that is wrong with a database."""

    what: str
    expected: str
    found: str


def damages(
    connection: sqlite3.Connection,
    migrations: Sequence[Migration],
    table: str = "migrations",
    *,
    shared: bool = False,
) -> Iterator[Damage]:
    """Return everything that is wrong with a database, apart from the content of its rows.

    `shared`: other programs may have added tables.
    """
    lines = [row[0] for row in connection.execute(f"PRAGMA integrity_check({_MAX_LINES})")]
    if lines != ["ok"]:
        yield from (Damage("the pages of the database", "sound", str(line)) for line in lines)
        return
    for row in connection.execute("PRAGMA foreign_key_check").fetchmany(_MAX_LINES):
        child, rowid, parent = row[0], row[1], row[2]
        place = f"a row of {child}" if rowid is None else f"row {rowid} of {child}"
        yield Damage(place, f"the row of {parent} that it refers to", "none")
    yield from _of_migrations(connection, migrations, table, shared=shared)


def _of_migrations(
    connection: sqlite3.Connection, migrations: Sequence[Migration], table: str, *, shared: bool
) -> Iterator[Damage]:
    applied = applied_in(connection, table)
    known = {m.name: m for m in migrations}
    for name, checksum in applied.items():
        if name not in known:
            yield Damage(f"migration {name}", "one that this Caloron knows", "one of a newer one")
        elif known[name].checksum != checksum:
            yield Damage(f"migration {name}", known[name].checksum, checksum)
    if applied.keys() - known.keys():
        return
    expected = _made_by([m for m in migrations if m.name in applied])
    found = _schema(connection)
    found.pop(f"table {table}", None)
    for thing in sorted(expected if shared else expected.keys() | found.keys()):
        # Line breaks in the SQL of a table do not matter.
        if _words(expected.get(thing)) != _words(found.get(thing)):
            yield Damage(thing, *(_short(each.get(thing)) for each in (expected, found)))


def _made_by(migrations: Sequence[Migration]) -> dict[str, str]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        for migration in migrations:
            run_script(fresh, migration.sql)
        return _schema(fresh)


def _schema(connection: sqlite3.Connection) -> dict[str, str]:
    query = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
    rows = [tuple(row) for row in connection.execute(query)]
    return {f"{kind} {name}": sql or "" for kind, name, sql in rows}


def _words(sql: str | None) -> str | None:
    return None if sql is None else "".join(sql.split())


def _short(sql: str | None) -> str:
    return "not there" if sql is None else " ".join(sql.split())[:200]
