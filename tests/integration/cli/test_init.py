"""`caloron init`: creates a complete project, or no files."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.git import git, new_repository


@pytest.fixture
def repository(tmp_path):
    path = new_repository(tmp_path / "my shop", {"basket.py": "items = []\n"})
    git(path, "branch", "-m", "trunk")
    git(path, "commit", "-q", "--amend", "-m", "A basket")
    return path


def test_a_project_gets_a_forge_that_starts_from_the_users_repository(run, home, repository):
    code, reply = run(
        "init", "shop", "--framework", "stub", "--repo", str(repository), "--verify", "true"
    )
    assert code == 0
    assert reply["command"] == "init"
    assert reply["data"] == {
        "name": "shop",
        "path": str(home / "projects" / "shop"),
        "repo": str(repository),
        "forge": "local",
        "backend": "direct",
        "framework": "stub",
        "active": True,
    }
    forge = home / "projects" / "shop" / "forge.git"
    assert git(forge, "log", "--format=%s", "main") == "A basket"
    assert (home / "active").read_text() == "shop\n"
    assert run.data("config", "get", "verify")["value"] == "true"


def test_the_text_names_the_next_step(run):
    assert "Next: caloron sprint" in run.text("init", "shop", "--framework", "stub")


def test_a_second_init_of_the_same_name_is_a_conflict_and_changes_nothing(run, home):
    run("init", "shop", "--framework", "stub", "--verify", "make test")
    before = (home / "projects" / "shop" / "config.yml").read_bytes()
    run.refused(5, "", "init", "shop", "--framework", "stub")
    assert (home / "projects" / "shop" / "config.yml").read_bytes() == before


def test_a_failed_init_leaves_no_files_and_can_be_repeated(run, home, tmp_path, repository):
    empty = tmp_path / "empty"
    empty.mkdir()
    run.refused(
        2, "not a git repository", "init", "shop", "--framework", "stub", "--repo", str(empty)
    )
    assert list((home / "projects").iterdir()) == []
    assert not (home / "active").exists()
    assert run("init", "shop", "--framework", "stub", "--repo", str(repository))[0] == 0


def test_the_next_init_removes_the_files_of_a_killed_init(run, home):
    gone = subprocess.Popen(["true"])
    gone.wait()
    remains = home / "projects" / f".init-shop-{gone.pid}"
    (remains / "forge.git").mkdir(parents=True)
    assert run("init", "shop", "--framework", "stub")[0] == 0
    assert [entry.name for entry in (home / "projects").iterdir()] == ["shop"]


def test_a_directory_that_is_no_project_is_never_overwritten(run, home):
    folder = home / "projects" / "shop"
    folder.mkdir(parents=True)
    (folder / "precious").write_text("mine")
    run.refused(8, "no config.yml", "init", "shop", "--framework", "stub")
    assert (folder / "precious").read_text() == "mine"


@pytest.mark.parametrize("name", ["..", "a/b", "Shop", "", "a" * 65, "shop\n", "é"])
def test_a_name_that_is_not_a_folder_name_is_refused(run, home, name):
    run.refused(2, repr(name), "init", name, "--framework", "stub")
    assert not (home / "projects").exists()


def test_an_unknown_framework_is_refused_with_the_known_ones(run):
    run.refused(2, ("zork", "stub, command"), "init", "shop", "--framework", "zork")


def test_a_missing_repository_is_not_found(run):
    run.refused(3, "nowhere", "init", "shop", "--framework", "stub", "--repo", "nowhere")


@pytest.mark.parametrize("forge", [(), ("--forge", "github", "--repo", "ada/shop")])
def test_without_a_framework_the_agent_on_path_is_taken_or_none_is_reported(
    run, tmp_path, monkeypatch, forge
):
    monkeypatch.delenv("CALORON_CLAUDE", raising=False)
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    run.refused(8, ("no coding agent", "--framework"), "init", "shop", *forge)
    assert run.data("project", "list")["projects"] == []
    if not forge:
        (tools / "claude").write_text("#!/bin/sh\n")
        (tools / "claude").chmod(0o755)
        assert run.data("init", "shop")["framework"] == "claude-code"
