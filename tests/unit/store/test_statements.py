"""SQL in files, and errors of the store with a hint."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from caloron.store.database import load_statements, store_error, with_prefix


def test_statements_of_a_file_are_loaded_by_name(tmp_path: Path) -> None:
    file = tmp_path / "x.sql"
    file.write_text("-- a word first\n-- name: one\nSELECT 1\n-- name: two\n-- why\nSELECT 2\n;\n")
    assert load_statements(file) == {"one": "SELECT 1\n", "two": "-- why\nSELECT 2\n;\n"}


def test_tables_can_have_a_longer_name_in_another_file() -> None:
    sql = {"one": "SELECT ms FROM clock; UPDATE leases SET clocked = 1 WHERE leases.x = :leases_x"}
    assert with_prefix(sql, ("leases", "clock"), "our_") == {
        "one": "SELECT ms FROM our_clock; UPDATE our_leases SET clocked = 1"
        " WHERE our_leases.x = :leases_x"
    }


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (sqlite3.SQLITE_FULL, "free some space"),
        (sqlite3.SQLITE_IOERR_WRITE, "free some space"),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, "another program holds it"),
        (sqlite3.SQLITE_READONLY_DBMOVED, "make the file and its directory writable"),
        (sqlite3.SQLITE_CANTOPEN, "make the file and its directory writable"),
        (sqlite3.SQLITE_CORRUPT, "restore a copy"),
        (sqlite3.SQLITE_NOTADB, "restore a copy"),
    ],
)
def test_an_error_of_the_database_has_a_hint(code: int, advice: str) -> None:
    failure = sqlite3.OperationalError("in other words")
    failure.sqlite_errorcode = code
    error = store_error(Path("/x/ledger.db"), failure)
    assert str(error) == "/x/ledger.db: in other words"
    assert advice in error.hint
    assert error.exit_code == 8
