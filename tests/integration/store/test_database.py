"""Opening, migrating and losing a database: real files, real processes, real locks."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
from pathlib import Path

import pytest

from caloron.errors import StoreError
from caloron.ledger.ledger import MIGRATIONS
from caloron.store import database
from caloron.store.database import Database, Migration, open_read_only
from tests.integration.store.conftest import PROCESSES

ONE = Migration("test/0001", "CREATE TABLE a (x);\nINSERT INTO a VALUES (1);")
TWO = Migration("test/0002", "CREATE TABLE b (x);")


def _tables(path: Path) -> set[str]:
    with sqlite3.connect(path) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {row[0] for row in found}


def test_a_database_is_brought_up_to_date_once(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    Database(path, [ONE]).close()
    Database(path, [ONE, TWO]).close()
    db = Database(path, [ONE, TWO])
    assert _tables(path) == {"a", "b", "migrations"}
    assert len(db.rows("SELECT * FROM a")) == 1


def test_migrations_are_remembered_where_they_shall_be_and_told_when_applied(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.db"
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE migrations (version TEXT)")
    first = Database(path, [ONE], table="ours")
    assert first.migrated == (ONE.name,)
    first.close()
    second = Database(path, [ONE, TWO], table="ours")
    assert second.migrated == (TWO.name,)
    second.close()
    third = Database(path, [ONE, TWO], table="ours")
    assert third.migrated == ()
    assert third.rows("SELECT * FROM migrations") == []


def test_a_database_written_by_a_newer_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    Database(path, [ONE, TWO]).close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="newer Caloron") as refused:
        Database(path, [ONE])
    assert "test/0002" in str(refused.value)
    assert "upgrade" in refused.value.hint
    assert refused.value.exit_code == 8
    assert path.read_bytes() == before


def test_a_migration_whose_text_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    Database(path, [ONE]).close()
    changed = Migration(ONE.name, ONE.sql + "\nCREATE TABLE c (x);")
    with pytest.raises(StoreError, match=r"test/0001 is not the one"):
        Database(path, [changed, TWO])
    assert _tables(path) == {"a", "migrations"}


def test_a_migration_that_fails_leaves_nothing_of_itself(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    broken = Migration("test/0002", "CREATE TABLE b (x);\nINSERT INTO nowhere VALUES (1);")
    with pytest.raises(StoreError, match="nowhere"):
        Database(path, [ONE, broken])
    assert _tables(path) == set()
    Database(path, [ONE, TWO]).close()
    assert _tables(path) == {"a", "b", "migrations"}


def _open(path: Path) -> int:
    db = Database(path, MIGRATIONS)
    found = len(db.rows("SELECT * FROM migrations"))
    db.close()
    return found


def test_four_processes_that_open_a_new_database_at_once_all_succeed(tmp_path: Path) -> None:
    for round in range(3):
        path = tmp_path / f"{round}.db"
        with PROCESSES.Pool(4) as pool:
            assert pool.map(_open, [path] * 4, chunksize=1) == [len(MIGRATIONS)] * 4


def test_what_was_not_committed_is_gone(tmp_path: Path) -> None:
    db = Database(tmp_path / "x.db", [ONE])
    with pytest.raises(ZeroDivisionError):
        _insert_and_fail(db)
    assert [r["x"] for r in db.rows("SELECT x FROM a")] == [1]


def _insert_and_fail(db: Database) -> None:
    with db.transaction("test") as connection:
        connection.execute("INSERT INTO a VALUES (2)")
        raise ZeroDivisionError


def test_a_kill_before_the_commit_loses_all_of_it_and_one_after_it_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    Database(path, [ONE]).close()
    for point, expected in (("before_commit", 1), ("after_commit", 2)):
        worker = PROCESSES.Process(target=_insert_and_die, args=(path, point))
        worker.start()
        worker.join()
        assert worker.exitcode == -signal.SIGKILL
        assert len(Database(path, [ONE]).rows("SELECT x FROM a")) == expected


def _insert_and_die(path: Path, point: str) -> None:
    def die(name: str, of: str = "") -> None:
        if name == f"test.{point}":
            os.kill(os.getpid(), signal.SIGKILL)

    database.crashpoint = die  # type: ignore[attr-defined]
    with Database(path, [ONE]).transaction("test") as connection:
        connection.execute("INSERT INTO a VALUES (2)")


def test_a_commit_is_on_disk_before_it_returns(tmp_path: Path) -> None:
    db = Database(tmp_path / "x.db", [ONE])
    settings = [db.row(f"PRAGMA {name}") for name in ("journal_mode", "synchronous")]
    assert [tuple(s) for s in settings if s] == [("wal",), (2,)]


def test_a_database_that_is_locked_says_so_and_can_be_used_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_BUSY_S", 0.05)
    db = Database(tmp_path / "x.db", [ONE])
    other = sqlite3.connect(db.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked") as refused, db.transaction("test"):
        raise AssertionError("not reached")
    assert "another program holds it" in refused.value.hint
    assert str(db.path) in str(refused.value)
    other.execute("ROLLBACK")
    with db.transaction("test") as connection:
        connection.execute("INSERT INTO a VALUES (2)")


def test_a_full_disk_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    db = Database(tmp_path / "x.db", [ONE])
    db.rows("PRAGMA max_page_count = 10")
    with pytest.raises(StoreError, match="full") as refused, db.transaction("test") as connection:
        connection.execute("INSERT INTO a VALUES (zeroblob(1000000))")
    assert "free some space" in refused.value.hint
    db.rows("PRAGMA max_page_count = 100000")
    assert len(db.rows("SELECT * FROM a")) == 1


def test_a_file_that_is_no_database_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"hello" * 1000)
    with pytest.raises(StoreError, match="not a database") as refused:
        Database(path, [ONE])
    assert "move the file aside" in refused.value.hint
    assert path.read_bytes() == b"hello" * 1000


def test_a_look_never_creates_or_changes_a_database(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with pytest.raises(StoreError, match="unable to open"):
        open_read_only(path)
    assert not path.exists()
    Database(path, [ONE]).close()
    looking = open_read_only(path)
    assert looking.execute("SELECT x FROM a").fetchone()["x"] == 1
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        looking.execute("INSERT INTO a VALUES (2)")
    looking.close()


def test_a_look_sees_what_a_writer_committed_and_nothing_that_it_has_not(tmp_path: Path) -> None:
    db = Database(tmp_path / "x.db", [ONE])
    looking = open_read_only(db.path)
    with db.transaction("test") as connection:
        connection.execute("INSERT INTO a VALUES (2)")
        assert looking.execute("SELECT count(*) FROM a").fetchone()[0] == 1
    assert looking.execute("SELECT count(*) FROM a").fetchone()[0] == 2
    looking.close()


def test_a_snapshot_is_one_moment_however_long_it_takes(tmp_path: Path) -> None:
    db, other = Database(tmp_path / "x.db", [ONE]), Database(tmp_path / "x.db", [ONE])
    with db.snapshot() as connection:
        first = connection.execute("SELECT count(*) FROM a").fetchone()[0]
        with other.transaction("test") as writing:
            writing.execute("INSERT INTO a VALUES (2)")
        assert connection.execute("SELECT count(*) FROM a").fetchone()[0] == first
    assert len(db.rows("SELECT * FROM a")) == first + 1


def test_a_disk_that_is_really_full_fails_the_commit_cleanly(tmp_path: Path) -> None:
    """The limit on the size of files stands in for the end of the disk."""
    path = tmp_path / "x.db"
    Database(path, [ONE]).close()
    worker = PROCESSES.Process(target=_write_beyond_the_limit, args=(path,))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    assert len(Database(path, [ONE]).rows("SELECT x FROM a")) == 1


def _write_beyond_the_limit(path: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    db = Database(path, [ONE])
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        with db.transaction("test") as connection:
            connection.execute("INSERT INTO a VALUES (randomblob(1000000))")
    except StoreError as error:
        os._exit(0 if "free some space" in error.hint else 3)
    os._exit(4)
