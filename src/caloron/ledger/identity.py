"""The identity of a ledger: no command takes the ledger of another project for its own."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from caloron.errors import StoreError
from caloron.ledger.upgrades import DATA_VERSION, show_in_todays_form
from caloron.store.database import open_read_only, restore_hint, store_error
from caloron.store.files import read_plain


def open_ledger(path: Path) -> sqlite3.Connection:
    """The ledger of a project, to read, in today's form; refused if it is that of another."""
    known = known_identity(path)
    connection = open_read_only(path)
    try:
        refuse_foreign(path, _kept(connection, "ledger_id") if known else "", known)
        show_in_todays_form(connection, path, int(_kept(connection, DATA_VERSION) or 1))
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error):
            raise store_error(path, error) from error
        raise
    return connection


def _kept(connection: sqlite3.Connection, key: str) -> str:
    try:
        row = connection.execute("SELECT value FROM kv WHERE key = ?", (key,)).fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        # Without this table it is no ledger.
        row = None
    return str(row["value"]) if row else ""


def known_identity(path: Path) -> str:
    """The identity of the project's ledger, which is kept beside it; empty if there is none."""
    try:
        return read_plain(path.with_suffix(".id")).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return ""


def refuse_foreign(path: Path, own: str, known: str) -> None:
    """Refuse a ledger with another identity than the one that is kept beside it."""
    beside = path.with_suffix(".id")
    if known and known != own:
        raise StoreError(
            f"{path} is not the ledger that this project had: its identity is"
            f" {own or 'missing'}, {beside.name} names {known[:40]!r}",
            hint=f"{restore_hint(path)}; if you replaced it on purpose, delete {beside}",
        )
