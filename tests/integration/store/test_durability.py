"""Files and transactions that are whole: between threads, on slow disks, across power cuts."""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path

import pytest

from caloron.errors import StoreError
from caloron.ledger.projects import create_project
from caloron.ledger.settings import ProjectConfig
from caloron.store.database import Database, store_error
from caloron.store.files import append_line, write_atomic


def test_threads_that_write_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    texts = [bytes([65 + number]) * 50_000 for number in range(4)]
    problems: list[BaseException] = []

    def write(text: bytes) -> None:
        try:
            for _ in range(30):
                write_atomic(path, text, durable=False)
                assert path.read_bytes() in texts
        except BaseException as error:  # noqa: BLE001 - reported to the main thread below
            problems.append(error)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_a_line_is_whole_however_little_each_write_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:3]))
    append_line(tmp_path / "log", b"a line of more than six bytes")
    monkeypatch.undo()
    assert (tmp_path / "log").read_bytes() == b"a line of more than six bytes\n"


def test_a_new_project_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALORON_HOME", str(tmp_path / "home"))
    steps: list[str] = []
    sync, rename = os.fsync, Path.rename

    def noted_sync(handle: int) -> None:
        steps.append(f"sync {Path(f'/proc/self/fd/{handle}').readlink()}")
        sync(handle)

    def noted_rename(self: Path, target: Path) -> Path:
        steps.append(f"rename {self}")
        return rename(self, target)

    def furnish(folder: Path) -> None:
        (folder / "forge.git" / "refs").mkdir(parents=True)
        (folder / "forge.git" / "refs" / "main").write_text("commit")

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    project = create_project(ProjectConfig(name="shop"), furnish)

    renamed = next(n for n, step in enumerate(steps) if step.startswith("rename "))
    scaffold = steps[renamed].removeprefix("rename ")
    before, after = steps[:renamed], steps[renamed + 1 :]
    for name in ("", "/config.yml", "/forge.git", "/forge.git/refs", "/forge.git/refs/main"):
        assert f"sync {scaffold}{name}" in before
    assert f"sync {project.path.parent}" in after


@pytest.fixture
def database(tmp_path: Path) -> Database:
    database = Database(tmp_path / "x.sqlite")
    with database.transaction("begin") as connection:
        connection.execute("CREATE TABLE things (name TEXT)")
    return database


def names(database: Database) -> list[str]:
    return [row["name"] for row in database.rows("SELECT name FROM things ORDER BY rowid")]


def test_a_look_within_a_transaction_does_not_undo_it(database: Database) -> None:
    with database.transaction("outer") as connection:
        connection.execute("INSERT INTO things VALUES ('first')")
        with database.snapshot() as inner, database.snapshot():
            assert inner.execute("SELECT count(*) FROM things").fetchone()[0] == 1
        connection.execute("INSERT INTO things VALUES ('second')")
    assert names(database) == ["first", "second"]


def test_a_transaction_within_another_is_refused_and_does_not_undo_it(database: Database) -> None:
    with database.transaction("outer") as connection:
        connection.execute("INSERT INTO things VALUES ('first')")
        with pytest.raises(StoreError), database.transaction("inner"):
            pass
    assert names(database) == ["first"]


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
        assert "restore a copy" in store_error(path, damaged.value).hint
        ledger = tmp_path / "shop" / "ledger.sqlite"
        assert "caloron state restore FILE --as shop" in store_error(ledger, damaged.value).hint
