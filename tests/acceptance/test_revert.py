"""`caloron revert` takes merged work out of main: verified, all of it or nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.acceptance.checkouts import repository, writes_file
from tests.support.home import Answer, Home, does, task, writes

#: Main needs c.txt as long as it has a.txt.
_VERIFY = "if [ -e a.txt ]; then test -e c.txt; fi"


@pytest.fixture
def merged(home: Home) -> Home:
    """An ended sprint of three merged tasks: a builds on c, b on a, whose file it changes."""
    home.set(verify=_VERIFY)
    home.script(writes("a", {"a.txt": "a\n"}), writes("b", {"a.txt": "a\nb\n"}), writes("c"))
    assert home.sprint(task("c"), task("a", "c"), task("b", "a")).code == 0
    return home


def _runs(home: Home) -> int:
    return sum(home.attempts(role) for role in ("implement", "review", "fix", "resolve"))


def _untouched(home: Home, refused: Answer, main: bytes, *words: str) -> None:
    assert refused.code == 8, refused
    for word in words:
        assert word in refused.error["message"]
    assert home.git("rev-parse", "main") == main
    assert home.pulls("open") == []


def test_a_sprint_is_reverted_by_one_verified_pull_request_and_later_work_stays(
    merged: Home,
) -> None:
    merged.script(writes("later"))
    assert merged.sprint(task("later")).code == 0
    before, runs, pulls = merged.files(), _runs(merged), len(merged.pulls())
    verified, old = len(merged.verify_runs()), merged.git("rev-parse", "main").decode().strip()
    dry = merged.caloron("revert", "1", "--dry-run")
    assert (dry.code, len(dry.json["planned_actions"])) == (9, 3)
    assert merged.caloron("revert", "1", stdin="n\n", json=False).code == 1
    assert merged.files() == before

    answer = merged.caloron("revert", "1", "--yes")
    assert answer.code == 0, answer
    assert answer.data["reverted"] == ["b", "a", "c"]
    assert merged.files() == {"later.txt": b"later\n"}
    assert _runs(merged) == runs, "no agent was started"
    assert len(merged.verify_runs()) == verified + 1
    assert len(merged.pulls()) == pulls + 1
    assert merged.pulls("open") == []
    # The history of main was only added to: three reverting commits and their merge.
    assert merged.git("rev-list", "--count", f"{old}..main") == b"4\n"
    number = answer.data["pull_request"]
    for name in "abc":
        (issue,) = [i for i in merged.issues() if i.get("task") == name]
        assert issue["state"] == "closed"
        assert f"#{number}" in merged.comments(issue["number"])[-1]
    assert merged.caloron("show", "1").data["phase"] == "ended"
    assert merged.caloron("revert", "1", "--yes").code == 8
    assert len(merged.pulls()) == pulls + 1


def test_a_reverted_task_names_those_that_build_on_it(merged: Home) -> None:
    asked = merged.caloron("revert", "b", stdin="n\n", json=False)
    assert asked.code == 1
    assert "build on" not in asked.stderr
    assert ": a, b" in merged.caloron("revert", "c", stdin="n\n", json=False).stderr

    answer = merged.caloron("revert", "b", "--yes")
    assert answer.code == 0, answer
    assert answer.data["built_on_by"] == []
    assert merged.files() == {"a.txt": b"a\n", "c.txt": b"c\n"}
    repeated = merged.caloron("revert", "b", "--yes")
    assert repeated.code == 8
    assert f"#{answer.data['pull_request']}" in repeated.error["message"]
    # The rest of the sprint can still be reverted.
    assert merged.caloron("revert", "1", "--yes").data["reverted"] == ["a", "c"]
    assert merged.files() == {}


def test_a_revert_that_makes_main_red_or_conflicts_changes_nothing(merged: Home) -> None:
    main = merged.git("rev-parse", "main")
    red = merged.caloron("revert", "c", "--yes")
    _untouched(merged, red, main, "main would be red")
    assert red.json["data"]["built_on_by"] == ["a", "b"]
    _untouched(merged, merged.caloron("revert", "a", "--yes"), main, "a.txt")
    assert merged.caloron("show", "1").data["phase"] == "ended"
    # What failed once can be asked for again, and other work goes on.
    assert merged.caloron("revert", "1", "--yes").code == 0
    merged.script(writes("later"))
    assert merged.sprint(task("later")).code == 0
    assert merged.files() == {"later.txt": b"later\n"}


def test_a_revert_is_refused_where_nothing_is_merged(home: Home) -> None:
    home.script(writes("a"), does("implement", "b", exit_code=1))
    assert home.sprint(task("a"), task("b")).code == 10
    main = home.git("rev-parse", "main")
    _untouched(home, home.caloron("revert", "b", "--yes"), main, "nothing of task b")
    assert home.caloron("revert", "nosuch", "--yes").code == 3
    assert home.caloron("revert", "9", "--yes").code == 3
    assert home.caloron("revert", "a", "--yes").code == 0
    assert home.files() == {}


def test_the_reverted_result_arrives_with_apply_and_may_be_built_again(bare_home: Home) -> None:
    bare_home.script(writes_file("new.txt"))
    shop = repository(bare_home)
    assert shop.sprint().code == 0
    assert shop.caloron("apply").code == 0
    mine = shop.commit("mine.txt", "mine\n")
    answer = shop.caloron("revert", "1", "--yes")
    assert answer.code == 0, answer
    assert answer.data["bring"].startswith("caloron apply")
    assert shop.head == mine
    assert (shop.path / "new.txt").exists()
    assert shop.caloron("apply").code == 0
    assert not (shop.path / "new.txt").exists()
    assert (shop.path / "mine.txt").exists()
    bare_home.script(writes_file("new.txt", "again\n"))
    assert shop.sprint("again").code == 0
    assert shop.caloron("apply").code == 0
    assert (shop.path / "new.txt").read_text() == "again\n"


_POINTS = [
    ("tick.before_commit", 1),
    ("tick.after_commit", 1),
    *((f"effect.{step}", k) for step in ("intend", "do", "record") for k in (1, 2, 3)),
]


def test_a_revert_that_is_killed_anywhere_is_completed_once(merged: Home, tmp_path: Path) -> None:
    before = merged.files()
    for number, (name, k) in enumerate(_POINTS):
        home = Home(tmp_path / f"cell-{number}")
        shutil.copytree(merged.path, home.path, ignore=shutil.ignore_patterns("wake"))
        at = f"engine|{name}|{k}|{home.root / 'once'}"
        killed = home.caloron("revert", "1", "--yes", CALORON_CRASH_AT=at)
        assert killed.code == -9, (name, k, killed)
        assert home.files() in ({}, before), "main has all of the revert, or nothing"
        answer = home.caloron("revert", "1", "--yes")
        assert answer.code == 0, (name, k, answer)
        assert home.files() == {}
        titles = [p["title"] for p in home.pulls() if p["title"].startswith("Revert")]
        assert titles == ["Revert 3 tasks: b, a, c"]
        assert home.caloron("show", "1").data["phase"] == "ended"
        home.close()
