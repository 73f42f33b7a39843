"""The first sprint in a repository sets a project up by itself, or says why it cannot."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.acceptance.checkouts import Repository, path_without, repository, writes_file
from tests.support.home import Home


@pytest.fixture
def shop(bare_home: Home) -> Repository:
    bare_home.script(writes_file("new.txt"))
    return repository(bare_home)


def _projects(home: Home) -> list[str]:
    return sorted(p.name for p in (home.path / "projects").glob("*")) if home.path.exists() else []


def test_a_sprint_in_a_sub_folder_sets_a_project_up_and_prints_every_default(
    shop: Repository,
) -> None:
    shop.commit("tests/test_a.py", "import unittest\nclass T(unittest.TestCase):\n    pass\n")
    shop.write("deep/er/x", "")
    answer = shop.sprint(folder="deep/er")
    assert answer.code == 0, answer
    setup = answer.data["project_setup"]
    verify = "python3 -m unittest discover -s tests"
    expected = {
        "name": "shop", "repo": str(shop.path), "branch": "main", "commit": shop.head,
        "forge": "local", "framework": "stub", "setup": "", "verify": verify, "network": "model",
        "network_roles": ["setup=public", "verify=none"], "budget_usd": 20.0,
    }  # fmt: skip
    assert {key: setup[key] for key in expected} == expected
    for value in ("shop", "local", "stub", verify, "model", "$20.00"):
        assert value in answer.stderr
    assert answer.data["verify"] == verify
    assert answer.data["bring"] == "caloron apply"
    again = shop.sprint("more", folder="tests")
    assert again.data["project_setup"] is None
    assert again.data["sprint_id"] == "shop-2"
    assert shop.caloron("apply").data["how"] == "fast-forward"
    assert (shop.path / "new.txt").read_text() == "new\n"


def test_a_dry_run_names_the_project_and_creates_nothing(shop: Repository) -> None:
    answer = shop.sprint("go", "--dry-run")
    assert answer.code == 9
    first, second, *_ = answer.json["planned_actions"]
    assert first["action"] == "set up project"
    assert first["setup"]["name"] == "shop"
    assert second["target"] == "shop-1"
    assert not shop.home.path.exists()


def _next_sprint(shop: Repository, *options: str) -> str:
    """Return the id that a sprint would get here."""
    answer = shop.sprint("go", *options, "--dry-run")
    return str(answer.json["planned_actions"][0]["target"])


def test_the_repository_beats_the_active_project_and_an_explicit_project_beats_both(
    shop: Repository,
) -> None:
    assert shop.sprint().code == 0
    other = repository(shop.home, "other")
    assert other.sprint().data["project"] == "other"
    assert shop.home.caloron("project", "list").data["active"] == "other"
    assert _next_sprint(shop) == "shop-2"
    assert shop.caloron("status").data["project"] == "shop"
    assert shop.home.caloron("status").data["project"] == "other"
    assert _next_sprint(shop, "--project", "other") == "other-2"
    # A command for copying names the project only where that is needed.
    shop.home.script(writes_file("b.txt"))
    elsewhere = shop.home.caloron(
        "sprint", "go", "--single", "--yes", "--project", "shop", cwd=other.path
    )
    assert elsewhere.data["bring"] == "caloron apply --project shop"


@pytest.mark.parametrize(
    ("folder", "name"),
    [("Über Shop!", "uber-shop"), ("日本", "project"), ("-x-", "x"), ("a" * 90, "a" * 64)],
)
def test_any_folder_gives_a_valid_name(bare_home: Home, folder: str, name: str) -> None:
    bare_home.script(writes_file("new.txt"))
    answer = repository(bare_home, folder).sprint("go", "--dry-run")
    assert answer.json["planned_actions"][0]["setup"]["name"] == name


def test_two_repositories_with_the_same_name_get_two_projects(shop: Repository) -> None:
    assert shop.sprint().data["project"] == "shop"
    second = repository(shop.home, "elsewhere/shop")
    assert second.sprint().data["project"] == "shop-2"
    assert second.caloron("status").data["project"] == "shop-2"


def test_without_an_agent_cli_the_error_lists_the_frameworks(
    shop: Repository,
) -> None:
    path = path_without(shop.home, "claude")
    answer = shop.caloron("sprint", "go", "--single", "--yes", PATH=path)
    assert answer.code == 8
    for name in ("claude", "stub", "command", "--framework"):
        assert name in answer.error["message"] + answer.error["hint"]
    assert shop.caloron("sprint", "go", "--framework", "abacus").code == 2
    assert shop.caloron("sprint", "go", "--framework", "command").code == 2
    assert not shop.home.path.exists()


def test_an_existing_project_keeps_its_framework(shop: Repository) -> None:
    assert shop.sprint().code == 0
    answer = shop.caloron("sprint", "go", "--framework", "claude-code")
    assert answer.code == 2
    assert "config set framework" in answer.error["hint"]


def test_outside_of_a_repository_without_a_project_the_error_has_a_remedy(bare_home: Home) -> None:
    answer = bare_home.caloron("sprint", "go")
    assert answer.code == 3
    assert "git repository" in answer.error["hint"]
    assert "caloron init" in answer.error["hint"]


def test_without_an_active_project_the_error_lists_the_projects_and_the_command(
    bare_home: Home,
) -> None:
    for name in ("one", "two"):
        assert bare_home.caloron("init", name, "--framework", "stub").code == 0
    assert bare_home.caloron("project", "delete", "two", "--force").code == 0
    answer = bare_home.caloron("sprint", "go", "--yes")
    assert answer.code == 3
    assert "no project is active" in answer.error["message"]
    for text in (answer.error["hint"], bare_home.caloron("status", json=False).stdout):
        assert "caloron project switch" in text
        assert "--project" in text
        assert "one" in text.rpartition(":")[2]


def test_a_start_that_fails_leaves_no_project(shop: Repository) -> None:
    before = shop.state
    shop.home.fixture.write_text("{nope")
    broken = shop.sprint()
    assert broken.code == 2, broken
    shop.home.script(writes_file("new.txt"))
    shop.commit(".gitattributes", "*.bin filter=lfs\n")
    refused = shop.sprint()
    assert refused.code == 8
    assert "Git LFS (.gitattributes)" in refused.error["message"]
    assert _projects(shop.home) == []
    assert not (shop.home.path / "active").exists()
    shop.git("rm", "-q", ".gitattributes")
    shop.commit()
    assert shop.state[2] == before[2]
    assert shop.sprint().code == 0


def test_a_missing_requirement_is_reported_before_anything_is_created(shop: Repository) -> None:
    path = path_without(shop.home, "bwrap")
    answer = shop.caloron("sprint", "go", "--single", "--yes", "--framework", "stub", PATH=path)
    assert answer.code == 8, answer
    assert "bubblewrap" in answer.error["message"]
    assert "caloron doctor" in answer.error["hint"]
    assert not shop.home.path.exists()
    open_ = shop.caloron(
        "sprint", "go", "--single", "--yes", "--framework", "stub", "--unsandboxed", PATH=path
    )
    assert open_.code == 0, open_


def test_uncommitted_files_are_counted_only_when_there_are_any(shop: Repository) -> None:
    assert shop.sprint().data["uncommitted"] is None
    shop.write("kept.txt", "changed\n")
    shop.write("folder/one", "1")
    shop.write("folder/two", "2")
    shop.write(".gitignore", "ignored\n")
    shop.write("ignored", "")
    answer = shop.sprint()
    assert answer.code == 0, answer
    expected = {"repo": str(shop.path), "changed": 1, "untracked": 3}
    assert answer.data["uncommitted"] == expected
    assert "4 files that are not committed (3 new)" in answer.stderr
    assert "NOT SEEN BY AGENTS" in answer.stderr
    assert shop.merged() == {"kept.txt": "kept", "new.txt": "new"}


# Kinds of repositories


def test_agents_begin_at_the_branch_that_is_checked_out(bare_home: Home) -> None:
    bare_home.script(writes_file("new.txt"))
    shop = repository(bare_home, branch="trunk")
    shop.git("switch", "--quiet", "-c", "feature/x")
    shop.commit("feature.txt", "f\n")
    answer = shop.sprint()
    assert answer.code == 0, answer
    assert answer.data["project_setup"]["branch"] == "feature/x"
    assert shop.git("branch", "--show-current") == "feature/x"
    assert shop.caloron("apply").data["branch"] == "feature/x"
    assert (shop.path / "new.txt").exists()
    assert shop.git("rev-parse", "trunk") != shop.head


def test_a_detached_head_gets_a_sprint_but_no_take(
    shop: Repository,
) -> None:
    shop.git("switch", "--quiet", "--detach")
    answer = shop.sprint()
    assert answer.code == 0, answer
    assert answer.data["project_setup"]["branch"] == ""
    refused = shop.caloron("apply")
    assert refused.code == 8
    assert "git switch" in refused.error["hint"]


def test_an_empty_repository_is_refused_with_a_remedy(bare_home: Home) -> None:
    bare_home.script()
    empty = Repository(bare_home, bare_home.root / "empty")
    empty.path.mkdir()
    empty.git("init", "--quiet")
    answer = empty.sprint()
    assert answer.code == 8
    assert "no commit yet" in answer.error["message"]
    assert "git commit" in answer.error["hint"]
    assert not bare_home.path.exists()


def test_a_bare_repository_and_a_git_directory_are_refused(shop: Repository) -> None:
    subprocess.run(
        ("git", "clone", "--quiet", "--bare", str(shop.path), str(shop.home.root / "bare")),
        check=True, env=shop.home.environment,
    )  # fmt: skip
    for folder in (shop.home.root / "bare", shop.path / ".git"):
        answer = shop.home.caloron("sprint", "go", "--framework", "stub", cwd=folder)
        assert answer.code == 8, (folder, answer)
        assert "nothing is checked out" in answer.error["message"]
    assert not shop.home.path.exists()


def test_a_work_tree_beside_the_repository_is_a_project_of_its_own(shop: Repository) -> None:
    assert shop.sprint().code == 0
    shop.git("worktree", "add", "--quiet", "-b", "side", "../beside")
    beside = Repository(shop.home, shop.path.parent / "beside")
    answer = beside.sprint()
    assert answer.code == 0, answer
    assert answer.data["project"] == "beside"
    assert beside.caloron("apply").data["branch"] == "side"
    assert (beside.path / "new.txt").exists()
    assert not (shop.path / "new.txt").exists()


def test_a_shallow_clone_works_and_takes(shop: Repository) -> None:
    for number in range(3):
        shop.commit("more.txt", str(number))
    shallow = Repository(shop.home, shop.home.root / "shallow")
    subprocess.run(
        ("git", "clone", "--quiet", "--depth=1", f"file://{shop.path}", str(shallow.path)),
        check=True, env=shop.home.environment,
    )  # fmt: skip
    answer = shallow.sprint()
    assert answer.code == 0, answer
    taken = shallow.caloron("apply")
    assert taken.code == 0, taken
    assert (shallow.path / "new.txt").exists()
    shallow.git("fsck")
    shallow.commit("mine.txt", "mine\n")
    shallow.home.script(writes_file("later.txt"))
    assert shallow.sprint().code == 0
    assert shallow.caloron("apply").data["commits"] == 2


def test_without_a_name_in_git_a_sprint_runs_and_a_fast_forward_is_taken(shop: Repository) -> None:
    shop.home.environment["GIT_CONFIG_GLOBAL"] = os.devnull
    answer = shop.sprint()
    assert answer.code == 0, answer
    assert shop.caloron("apply").code == 0
    assert (shop.path / "new.txt").exists()


def test_two_first_sprints_at_the_same_moment_create_a_single_project(shop: Repository) -> None:
    line = ("sprint", "go", "--single", "--yes", "--framework", "stub", "--unsandboxed")
    both = [
        subprocess.Popen(
            (sys.executable, "-m", "caloron.cli", *line),
            cwd=shop.path,
            env=shop.home.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(2)
    ]
    codes = sorted(process.wait() for process in both)
    assert codes in ([0, 0], [0, 5]), codes
    assert _projects(shop.home) == ["shop"]


def test_a_damaged_configuration_never_makes_commands_act_on_another_project(
    bare_home: Home,
) -> None:
    bare_home.caloron("init", "other", "--framework", "stub")
    shop = repository(bare_home)
    assert (
        bare_home.caloron("init", "shop", "--framework", "stub", "--repo", str(shop.path)).code == 0
    )
    assert bare_home.caloron("project", "switch", "other").code == 0
    file = bare_home.project("shop") / "config.yml"
    commands = (
        ("status",),
        ("inbox",),
        ("apply", "--dry-run"),
        ("config", "set", "verify", "true"),
        ("sprint", "go", "--framework", "stub"),
    )
    for damaged in ("framework: [1\n", "", 'repo: "/half\n', "repo: [1]\n", "\0\0"):
        file.write_text(damaged)
        for command in commands:
            answer = shop.caloron(*command)
            assert answer.code == 2, answer
            assert str(file) in answer.error["message"]
        assert _projects(bare_home) == ["other", "shop"]
        assert file.read_text() == damaged
    assert shop.caloron("status", "--project", "other").code == 0
    # Outside of the repository no command asks for that project.
    assert bare_home.caloron("status").data["project"] == "other"
