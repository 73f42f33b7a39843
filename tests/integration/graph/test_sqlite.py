"""The small databases: a change is whole or not there, and what failed stands in nobody's way."""

from __future__ import annotations

import sqlite3

import pytest

from caloron.graph.sqlite import Database


def _count(database: Database) -> object:
    row = database.read("SELECT count(*) FROM t", ())
    assert row is not None
    return row[0]


def test_a_failed_change_leaves_nothing_and_the_next_one_works(tmp_path):
    schema = "CREATE TABLE IF NOT EXISTS t (x INTEGER PRIMARY KEY)"
    database = Database(tmp_path / "d" / "t.db", schema, survives_power_loss=True)

    def twice() -> None:
        with database.transaction() as connection:
            connection.execute("INSERT INTO t VALUES (1)")
            connection.execute("INSERT INTO t VALUES (1)")

    with pytest.raises(sqlite3.IntegrityError):
        twice()
    assert _count(database) == 0
    with database.transaction() as connection:
        connection.execute("INSERT INTO t VALUES (1)")
    other = Database(tmp_path / "d" / "t.db", schema, survives_power_loss=False)
    assert _count(other) == 1
    database.close()
    other.close()
