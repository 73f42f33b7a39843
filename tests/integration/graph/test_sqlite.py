"""The small databases: a change is whole or not there, and what failed stands in nobody's way."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from caloron.graph.storage.sqlite import Database

_SOURCES = Path(__file__).parents[3] / "src"


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


def test_a_cache_file_serves_processes_at_once(tmp_path):
    code = """
import sys
from pathlib import Path
from caloron.graph.storage.cache import SqliteCache
from caloron.graph.runtime.protocols import CacheKey
cache = SqliteCache(Path(sys.argv[1]), most_entries=500)
for number in range(300):
    key = CacheKey("s", "c", str(number))
    known = cache.get(key)
    assert known in (None, f"[{number}]"), known
    cache.put(key, f"[{number}]")
assert not cache.trouble, cache.trouble
"""
    command = [sys.executable, "-c", code, str(tmp_path / "cache.db")]
    environ = {"PYTHONPATH": str(_SOURCES)}
    several = [subprocess.Popen(command, env=environ) for _ in range(3)]
    assert [process.wait() for process in several] == [0, 0, 0]


def test_a_full_disk_is_told_as_that_and_the_next_change_works(tmp_path):
    schema = "CREATE TABLE IF NOT EXISTS t (x TEXT)"
    database = Database(tmp_path / "t.db", schema, survives_power_loss=True)
    database._connection.execute("PRAGMA max_page_count = 8")

    def write(text: str) -> None:
        with database.transaction() as connection:
            connection.execute("INSERT INTO t VALUES (?)", (text,))

    with pytest.raises(sqlite3.OperationalError, match="is full"):
        write("x" * 100_000)
    write("small")
    assert _count(database) == 1
    database.close()


def test_a_commit_that_fails_leaves_no_transaction_open(tmp_path):
    schema = """CREATE TABLE IF NOT EXISTS p (id INTEGER PRIMARY KEY);;
CREATE TABLE IF NOT EXISTS t (x INTEGER REFERENCES p DEFERRABLE INITIALLY DEFERRED)"""
    database = Database(tmp_path / "t.db", schema, survives_power_loss=True)
    database._connection.execute("PRAGMA foreign_keys = ON")
    with pytest.raises(sqlite3.IntegrityError), database.transaction() as connection:
        connection.execute("INSERT INTO t VALUES (7)")
    with database.transaction() as connection:
        connection.execute("INSERT INTO t VALUES (NULL)")
    assert _count(database) == 1
    database.close()
