"""Commands act on the project of the folder they are called in, and say so where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from caloron.cli.render import unmarked
from tests.acceptance.checkouts import Repository, repository, writes_file
from tests.acceptance.terminals import Terminal
from tests.support.home import Home, task, writes

GO = ("go", "--single", "--yes")


@pytest.fixture
def shop(bare_home: Home) -> Repository:
    """The active project `shop`, with one sprint, made in its repository."""
    bare_home.script(writes_file("new.txt"))
    shop = repository(bare_home)
    done = shop.sprint()
    assert done.code == 0, done
    return shop


@pytest.fixture
def plain(shop: Repository) -> Path:
    """A folder that is in no repository."""
    folder = shop.home.root / "plain"
    folder.mkdir()
    return folder


def test_outside_of_a_repository_no_sprint_begins_in_the_active_project(
    shop: Repository, plain: Path
) -> None:
    before = shop.merged()
    shop.home.script(writes_file("unwanted.txt"))
    for words in (
        ("sprint", *GO),
        ("sprint", *GO, "--dry-run"),
        ("sprint", "--plan-only", *GO[:2]),
    ):
        refused = shop.home.caloron(*words, cwd=plain)
        assert shop.merged() == before
        assert refused.code == 2, refused
        assert "--project shop" in refused.error["hint"]
        assert str(shop.path) in refused.error["hint"]
    assert len(shop.caloron("history").data["sprints"]) == 1


def test_the_start_is_refused_on_a_terminal_too(shop: Repository, plain: Path) -> None:
    code, screen = Terminal(shop.home, "sprint", "go", "--single", cwd=plain).end()
    assert code == 2
    assert "--project shop" in " ".join(screen.split())


def test_a_project_that_is_named_gets_its_sprint_from_anywhere(
    shop: Repository, plain: Path
) -> None:
    shop.home.script(writes_file("wanted.txt"))
    done = shop.home.caloron("sprint", *GO, "--project", "shop", cwd=plain)
    assert done.code == 0, done
    assert "wanted.txt" in shop.merged()


def test_a_project_without_a_repository_is_named_or_worked_on_in_its_own_folder(
    bare_home: Home, tmp_path: Path
) -> None:
    bare_home.script(writes_file("new.txt")).init("scratch")
    made = bare_home.caloron("init", "other", "--framework", "stub", json=False).stdout
    assert "--project other" in made
    assert bare_home.caloron("sprint", *GO, cwd=tmp_path).code == 2
    inside = bare_home.caloron("sprint", *GO, cwd=bare_home.project("scratch") / "forge.git")
    assert inside.code == 0, inside
    assert inside.data["project"] == "scratch"
    named = bare_home.caloron("sprint", *GO, "--project", "other", cwd=tmp_path)
    assert named.data["project"] == "other"


def test_a_command_that_acts_on_the_active_project_names_it_and_its_repository(
    shop: Repository, plain: Path
) -> None:
    lines = (
        "status", "why", "inbox", "history", "report", "show 1", "retro", "metrics", "config list",
        "pr list", "logs go", "trace go", "agents list", "stop", "take --dry-run", "clean --yes",
        "discard --dry-run", "resume",
    )  # fmt: skip
    for number, line in enumerate(lines):
        answer = shop.home.caloron(*line.split(), cwd=plain, json=number % 2 == 0)
        note = [line for line in answer.stderr.splitlines() if "active project" in line]
        assert len(note) == 1, answer
        assert "shop" in note[0]
        assert str(shop.path) in note[0]
    for quiet in (
        shop.caloron("status", json=False),
        shop.home.caloron("status", "--project", "shop", cwd=plain, json=False),
    ):
        assert "active project" not in quiet.stderr + quiet.stdout


def test_a_repository_without_a_project_never_shows_another_project(
    shop: Repository,
) -> None:
    other = repository(shop.home, "other")
    lines = ("why", "inbox", "history", "report", "stop", "resume", "apply", "pr list",
             "config list", "discard --yes")  # fmt: skip
    for line in lines:
        answer = other.caloron(*line.split())
        assert answer.code == 3, answer
        assert str(other.path) in answer.error["message"]
        assert "caloron sprint" in answer.error["hint"]
        assert "shop" not in answer.error["message"].replace(str(other.path), "")


def test_after_a_refused_start_status_speaks_about_this_repository(shop: Repository) -> None:
    other = repository(shop.home, "other")
    other.commit(".gitattributes", "*.bin filter=lfs\n")
    assert other.sprint().code == 8
    answer = other.caloron("status", json=False)
    assert answer.code == 0
    assert f"{other.path} has no project yet" in answer.stdout
    assert "caloron sprint" in answer.stdout
    assert "Sprint shop-1" not in answer.stdout
    data = other.caloron("status").data
    assert data == {"active": None, "projects": 1, "repository": str(other.path)}
    assert other.caloron("doctor").data["project"] is None


def test_in_a_bare_repository_commands_act_on_its_project(bare_home: Home) -> None:
    source = repository(bare_home)
    bare = Repository(bare_home, bare_home.root / "shop.git")
    source.git("clone", "--quiet", "--bare", ".", str(bare.path))
    bare_home.init("shop", "--repo", str(bare.path)).init("active")
    assert bare.caloron("config", "list").data["project"] == "shop"


# What commands say next


def test_the_hint_names_the_sprint_in_which_a_task_ran(home: Home) -> None:
    home.script(writes("early"), writes("late"))
    for name in ("early", "late"):
        assert home.sprint(task(name)).code == 0
    refused = home.caloron("logs", "early")
    assert refused.code == 3
    assert refused.error["hint"] == "caloron logs early --sprint 1"
    assert home.caloron("logs", "early", "--sprint", "1").code == 0
    missing = home.caloron("logs", "early", "--sprint", "9")
    assert missing.code == 3
    assert missing.error["message"] == "there is no sprint 9"


def test_a_result_that_was_taken_is_not_offered_again(shop: Repository) -> None:
    assert "Get the result: caloron apply" in shop.caloron("resume", json=False).stdout
    assert shop.caloron("apply").code == 0
    again = shop.caloron("resume", json=False)
    assert again.code == 0
    assert "caloron apply" not in again.stdout + again.stderr


def test_a_first_sprint_names_its_budget(bare_home: Home) -> None:
    bare_home.script(writes_file("new.txt"))
    shop = repository(bare_home)
    words = ("sprint", "go", "--single", "--framework", "stub", "--budget", "5", "--dry-run")
    answer = shop.caloron(*words, json=False)
    assert "budget     $5.00 for this sprint" in answer.stderr


def test_a_pull_request_is_shown_without_the_escapes_of_a_web_page() -> None:
    page = "use &lt;= claude\\[1m\\] <details><summary>log</summary>x</details> `a &lt; \\[`"
    assert unmarked(page) == "use <= claude[1m] logx `a &lt; \\[`"
