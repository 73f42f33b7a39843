"""Opens a ledger for commands that only read, and reads the outage of its forge.

Standard library only: `status` and `why` import nothing heavier.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from caloron.errors import StoreError
from caloron.ledger.upgrades import DATA_VERSION, show_in_todays_form
from caloron.store.database import open_read_only, restore_hint, store_error
from caloron.store.files import read_plain

if TYPE_CHECKING:
    from caloron.domain.reporting.waiting import Outage
    from caloron.ledger.ledger import Ledger


def open_ledger(path: Path) -> sqlite3.Connection:
    """Open a ledger read-only, in today's form; refuse the ledger of another project."""
    known = known_identity(path)
    connection = open_read_only(path)
    try:
        refuse_foreign(path, _value(connection, "ledger_id") if known else "", known)
        show_in_todays_form(connection, path, int(_value(connection, DATA_VERSION) or 1))
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error):
            raise store_error(path, error) from error
        raise
    return connection


def _value(connection: sqlite3.Connection, key: str) -> str:
    try:
        row = connection.execute("SELECT value FROM kv WHERE key = ?", (key,)).fetchone()
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


def store_outage(ledger: Ledger, sprint: str, outage: Outage) -> None:
    """Store an outage, and append an event when it begins."""
    from caloron.ledger.ledger import SQL
    from caloron.store import queue

    with ledger.db.transaction("outage") as connection:
        connection.execute(SQL["put_kv"], {"key": _key(sprint), "value": json.dumps(outage)})
        payload = {"sprint": sprint, "what": str(outage), "detail": outage.detail}
        kind = "quota" if outage.until is not None else "silent"
        key = f"forge_{kind}/{sprint}/{outage.since}"
        queue.append_event(connection, f"forge_{kind}", payload, key=key)


def clear_outage(ledger: Ledger, sprint: str) -> None:
    """Record the end of an outage."""
    from caloron.ledger.ledger import SQL
    from caloron.store import queue

    with ledger.db.transaction("outage") as connection:
        connection.execute(SQL["put_kv"], {"key": _key(sprint), "value": ""})
        queue.append_event(connection, "forge_answers", {"sprint": sprint})


def read_outage(connection: sqlite3.Connection, sprint: str) -> Outage | None:
    """Return the outage that the last engine reported, if it still lasts."""
    from caloron.domain.reporting.waiting import Outage

    row = connection.execute("SELECT value FROM kv WHERE key = ?", (_key(sprint),)).fetchone()
    return Outage(*json.loads(row["value"])) if row and row["value"] else None


def _key(sprint: str) -> str:
    return f"forge_outage/{sprint}"
