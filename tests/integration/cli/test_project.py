"""`caloron project`: lists what it deletes, and deletes only files of the project."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from caloron.cli.app import main
from caloron.store.lock import ProcessLock


@pytest.fixture
def two(run: Any) -> None:
    assert run("init", "shop", "--framework", "stub")[0] == 0
    assert run("init", "scratch", "--framework", "stub")[0] == 0


@pytest.mark.usefixtures("two")
def test_the_list_marks_the_active_project_and_includes_a_broken_project(run, home: Path) -> None:
    (home / "projects" / "shop" / "config.yml").write_text("parallel: many\n")
    _, answer = run("project", "list")
    assert answer["data"]["active"] == "scratch"
    rows = {row["name"]: row for row in answer["data"]["projects"]}
    assert rows["scratch"]["active"]
    assert not rows["shop"]["active"]
    assert "parallel" in rows["shop"]["problem"]


@pytest.mark.usefixtures("two")
def test_switching_changes_what_later_commands_act_on(run) -> None:
    assert run("project", "switch", "shop", "--dry-run")[0] == 9
    assert run.data("status")["project"] == "scratch"
    assert run("project", "switch", "shop")[0] == 0
    assert run.data("status")["project"] == "shop"
    assert run("project", "switch", "nowhere")[0] == 3
    assert run.data("status")["project"] == "shop"


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("name", ["..", ".", "", "../projects/shop", "/", "shop/..", "SHOP", "*"])
def test_an_invalid_name_deletes_nothing(run, home: Path, name: str) -> None:
    run.refused(2, "", "project", "delete", name, "--force")
    assert {p.name for p in (home / "projects").iterdir()} >= {"shop", "scratch"}


@pytest.mark.usefixtures("two")
def test_deleting_lists_the_files_and_asks_for_the_name(run, home, monkeypatch, capsys) -> None:
    (home / "kv").mkdir()
    files = home / "kv" / "shop-1.json", home / "kv" / "shop-1-1.json"
    file_of_project, file_of_another_project = files
    for file in files:
        file.write_text("{}")
    for typed in ("", "scratch\n", "shop-1\n"):
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        assert main(["project", "delete", "shop"]) == 1
        reply = capsys.readouterr()
        assert str(home / "projects" / "shop" / "forge.git") in reply.err
        assert str(file_of_project) in reply.err
        assert str(file_of_another_project) not in reply.err
        assert (home / "projects" / "shop" / "config.yml").exists()
    monkeypatch.setattr("sys.stdin", io.StringIO("shop\n"))
    assert main(["project", "delete", "shop"]) == 0
    assert {p.name for p in (home / "projects").iterdir()} == {"scratch"}
    assert not file_of_project.exists()
    assert file_of_another_project.exists()


@pytest.mark.usefixtures("two")
def test_deleting_the_active_project_leaves_none_active(run, home: Path) -> None:
    answer = run.data("project", "delete", "scratch", "--force")
    assert answer["deleted"] == "scratch"
    assert answer["active"] is None
    assert not (home / "active").exists()
    assert run.data("status")["active"] is None


@pytest.mark.usefixtures("two")
def test_a_project_with_a_running_engine_is_not_deleted(run, home: Path) -> None:
    lock = ProcessLock(home / "projects" / "shop" / "engine.lock")
    lock.acquire("shop-1")
    try:
        for option in ("--force", "--dry-run"):
            run.refused(5, "shop-1", "project", "delete", "shop", option)
    finally:
        lock.release()
    assert (home / "projects" / "shop" / "config.yml").exists()


@pytest.mark.usefixtures("two")
def test_a_project_that_is_a_link_is_not_followed(run, home: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (home / "projects" / "shop").rename(elsewhere)
    (home / "projects" / "shop").symlink_to(elsewhere)
    assert run("project", "delete", "shop", "--force")[0] == 8
    assert (elsewhere / "config.yml").exists()
