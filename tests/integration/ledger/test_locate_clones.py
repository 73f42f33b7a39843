"""Inside a clone of a project's repository on its forge, commands find that project."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from caloron.ledger.locate import forge_kind, plain_settings, projects_for
from caloron.ledger.projects import create_project, load_project
from caloron.ledger.settings import ProjectConfig


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALORON_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def clone(folder: Path, origin: str) -> Path:
    subprocess.run(["git", "init", "-q", folder], check=True)
    subprocess.run(["git", "-C", folder, "remote", "add", "origin", origin], check=True)
    return folder


def gitea(name: str = "shop", **settings: str) -> None:
    values = {"host": "https://git.example.org:3000/api/v1", "repo": "Ada/shop"} | settings
    create_project(ProjectConfig(name=name, forge="gitea", **values))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "origin",
    [
        "https://git.example.org:3000/ada/shop.git",
        "https://git.example.org/ada/shop",
        "https://ada@git.example.org/ada/shop/",
        "git@git.example.org:ada/shop.git",
        "ssh://git@git.example.org:2222/ada/shop.git",
    ],
)
def test_a_clone_is_identified_by_any_spelling_of_its_origin(tmp_path: Path, origin: str) -> None:
    gitea()
    assert projects_for(clone(tmp_path / "clone", origin)) == ["shop"]


@pytest.mark.parametrize(
    "origin",
    [
        "https://git.example.org/ada/shop-2.git",
        "https://git.example.org/mallory/xada/shop.git",
        "https://git.example.com/ada/shop.git",
        "/srv/git/ada/shop.git",
        "",
    ],
)
def test_a_clone_of_another_repository_is_no_clone_of_the_project(
    tmp_path: Path, origin: str
) -> None:
    gitea()
    folder = clone(tmp_path / "clone", origin) if origin else tmp_path
    assert projects_for(folder) == []


def test_a_worktree_of_a_clone_is_recognised(tmp_path: Path) -> None:
    gitea()
    main = clone(tmp_path / "clone", "git@git.example.org:ada/shop.git")
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for line in (
        (*identity, "commit", "-q", "--allow-empty", "-m", "x"),
        ("worktree", "add", "-q", str(tmp_path / "tree")),
    ):
        subprocess.run(("git", "-C", str(main), *line), check=True)
    assert projects_for(tmp_path / "tree") == ["shop"]


def test_a_named_checkout_is_enough(tmp_path: Path) -> None:
    folder = clone(tmp_path / "clone", "https://elsewhere.example/x/y.git")
    gitea(checkout=str(folder))
    assert projects_for(folder) == ["shop"]


def test_github_is_github_com_with_any_api_address(tmp_path: Path) -> None:
    for number, host in enumerate(("", "https://api.github.com", "https://github.com")):
        config = ProjectConfig(name=f"p{number}", forge="github", host=host, repo="ada/shop")
        create_project(config)
    folder = clone(tmp_path / "clone", "git@github.com:ada/shop.git")
    assert projects_for(folder) == ["p0", "p1", "p2"]


def test_the_settings_of_a_forge_are_read_without_a_yaml_library(home: Path) -> None:
    gitea(
        git_url="git@git.example.org:ada/shop.git",
        webhook="127.0.0.1:9443",
        token_env="TOKEN",
        ca_file="/etc/ssl/my ca.pem",
    )
    file = home / "projects" / "shop" / "config.yml"
    settings = plain_settings(file)
    assert settings is not None
    assert settings["host"] == "https://git.example.org:3000/api/v1"
    assert settings["git_url"] == "git@git.example.org:ada/shop.git"
    assert settings["webhook"] == "127.0.0.1:9443"
    assert forge_kind(file) == "gitea"


def test_a_config_of_the_ancestor_that_names_a_forge_still_loads(home: Path) -> None:
    folder = home / "projects" / "old"
    folder.mkdir(parents=True)
    (folder / "config.yml").write_text(
        "name: old\nrepo: ada/shop\nforge: gitea\nhost: http://127.0.0.1:3000\n"
        "backend: direct\nframework: claude-code\nwork_dir: ''\ncreated_at: '2025-01-01'\n"
    )
    project = load_project("old")
    assert project.is_remote
    assert project.repository is None
    assert project.config.token_env == ""
