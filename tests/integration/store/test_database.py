"""Opening, migrating and losing a database: real files, real processes, real locks."""

from __future__ import annotations

import signal
import sqlite3
from pathlib import Path

import pytest

from caloron.errors import StoreError
from caloron.ledger.ledger import MIGRATIONS
from caloron.store.database import Database, Migration, open_read_only, store_error
from tests.integration.store.conftest import PROCESSES, exit_code

ONE = Migration("test/0001", "CREATE TABLE a (x);\nINSERT INTO a VALUES (1);")
TWO = Migration("test/0002", "CREATE TABLE b (x);")


def _tables(path: Path) -> set[str]:
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {row[0] for row in rows}


def test_a_database_is_brought_up_to_date_once_and_the_migrations_are_reported(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.db"
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE migrations (version TEXT)")
    for known, applied in (([ONE], (ONE.name,)), ([ONE, TWO], (TWO.name,)), ([ONE, TWO], ())):
        db = Database(path, known, table="ours")
        assert db.migrated == applied
        assert len(db.rows("SELECT * FROM a")) == 1
        db.close()
    assert _tables(path) == {"a", "b", "migrations", "ours"}
    assert Database(path).rows("SELECT * FROM migrations") == []


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


def test_a_failed_migration_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    broken = Migration("test/0002", "CREATE TABLE b (x);\nINSERT INTO nowhere VALUES (1);")
    with pytest.raises(StoreError, match="nowhere"):
        Database(path, [ONE, broken])
    assert _tables(path) == set()
    Database(path, [ONE, TWO]).close()
    assert _tables(path) == {"a", "b", "migrations"}


def _open(path: Path) -> int:
    db = Database(path, MIGRATIONS)
    applied = len(db.rows("SELECT * FROM migrations"))
    db.close()
    return applied


def test_four_processes_that_open_a_new_database_at_once_all_succeed(tmp_path: Path) -> None:
    for round in range(3):
        path = tmp_path / f"{round}.db"
        with PROCESSES.Pool(4) as pool:
            assert pool.map(_open, [path] * 4, chunksize=1) == [len(MIGRATIONS)] * 4


def _insert(db: Database) -> None:
    with db.transaction("test") as connection:
        connection.execute("INSERT INTO a VALUES (2)")


def _values(db: Database) -> list[int]:
    return [row["x"] for row in db.rows("SELECT x FROM a ORDER BY rowid")]


@pytest.mark.parametrize(("point", "expected"), [("before_commit", [1]), ("after_commit", [1, 2])])
def test_a_kill_before_the_commit_loses_the_transaction_and_a_later_kill_loses_nothing(
    tmp_path: Path, point: str, expected: list[int]
) -> None:
    path = tmp_path / "x.db"
    Database(path, [ONE]).close()
    killed = exit_code(lambda: _insert(Database(path, [ONE])), killed_at=f"test.{point}")
    assert killed == -signal.SIGKILL
    assert _values(Database(path, [ONE])) == expected


def test_a_transaction_within_another_is_refused_and_a_snapshot_within_it_is_part_of_it(
    tmp_path: Path,
) -> None:
    db = Database(tmp_path / "x.db", [ONE])
    with db.transaction("outer") as connection:
        connection.execute("INSERT INTO a VALUES (2)")
        with db.snapshot() as inner, db.snapshot():
            assert inner.execute("SELECT count(*) FROM a").fetchone()[0] == 2
        with pytest.raises(StoreError), db.transaction("inner"):
            pass
        connection.execute("INSERT INTO a VALUES (3)")
    assert _values(db) == [1, 2, 3]


def test_a_commit_is_on_disk_before_it_returns(tmp_path: Path) -> None:
    db = Database(tmp_path / "x.db", [ONE])
    settings = [db.row(f"PRAGMA {name}") for name in ("journal_mode", "synchronous")]
    assert [tuple(s) for s in settings if s] == [("wal",), (2,)]


def test_a_locked_database_is_reported_and_usable_afterwards(tmp_path: Path) -> None:
    db = Database(tmp_path / "x.db", [ONE], patience_s=0.05)
    other = sqlite3.connect(db.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked") as refused, db.transaction("test"):
        raise AssertionError("not reached")
    assert "another program holds it" in refused.value.hint
    assert str(db.path) in str(refused.value)
    other.execute("ROLLBACK")
    _insert(db)


def test_a_file_that_is_no_database_is_refused_with_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"hello" * 1000)
    with pytest.raises(StoreError, match="not a database") as refused:
        Database(path, [ONE])
    assert "move the file aside" in refused.value.hint
    assert path.read_bytes() == b"hello" * 1000


def test_reading_never_creates_or_changes_a_database(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with pytest.raises(StoreError, match="unable to open"):
        open_read_only(path)
    assert not path.exists()
    Database(path, [ONE]).close()
    reader = open_read_only(path)
    assert reader.execute("SELECT x FROM a").fetchone()["x"] == 1
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.execute("INSERT INTO a VALUES (2)")
    reader.close()


def test_a_reader_sees_committed_changes_only(tmp_path: Path) -> None:
    db = Database(tmp_path / "x.db", [ONE])
    reader = open_read_only(db.path)
    with db.transaction("test") as connection:
        connection.execute("INSERT INTO a VALUES (2)")
        assert reader.execute("SELECT count(*) FROM a").fetchone()[0] == 1
    assert reader.execute("SELECT count(*) FROM a").fetchone()[0] == 2
    reader.close()


def test_a_long_snapshot_sees_one_moment(tmp_path: Path) -> None:
    db, other = Database(tmp_path / "x.db", [ONE]), Database(tmp_path / "x.db", [ONE])
    with db.snapshot() as connection:
        first = connection.execute("SELECT count(*) FROM a").fetchone()[0]
        with other.transaction("test") as writing:
            writing.execute("INSERT INTO a VALUES (2)")
        assert connection.execute("SELECT count(*) FROM a").fetchone()[0] == first
    assert len(db.rows("SELECT * FROM a")) == first + 1


def test_a_really_full_disk_fails_the_commit_cleanly(tmp_path: Path) -> None:
    def write() -> None:
        with (
            pytest.raises(StoreError) as refused,
            Database(path, [ONE]).transaction("test") as connection,
        ):
            connection.execute("INSERT INTO a VALUES (randomblob(1000000))")
        assert "free some space" in refused.value.hint

    path = tmp_path / "x.db"
    Database(path, [ONE]).close()
    assert exit_code(write, largest_file=100_000) == 0
    assert _values(Database(path, [ONE])) == [1]


def test_a_failure_is_classified_by_its_code_and_not_by_words_in_names(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as connection:
        # The message of the library names the table.
        with pytest.raises(sqlite3.Error) as missing:
            connection.execute("SELECT * FROM locked_full_readonly")
        assert store_error(path, missing.value).hint == ""
    path.write_bytes(b"this is no database at all" * 100)
    with sqlite3.connect(path) as connection:
        with pytest.raises(sqlite3.Error) as damaged:
            connection.execute("SELECT * FROM sqlite_master")
        ledger = tmp_path / "shop" / "ledger.sqlite"
        assert "caloron state restore FILE --as shop" in store_error(ledger, damaged.value).hint
