"""Discarding a sprint closes its open issues and pull requests and keeps the work of its agents."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.home import Home, does, task, writes

_REJECTS = does("review", "c", output="CHANGES_NEEDED: never good enough")
_FIXES = [does("fix", "c", round=n, files={"c.txt": f"c {n}\n"}) for n in range(1, 5)]


@pytest.fixture
def mixed(home: Home) -> Home:
    """A sprint that ended: a is merged, b failed, c has an open pull request, d waits for b."""
    home.set(max_fix_rounds=1)
    home.script(writes("a"), does("implement", "b", exit_code=1), writes("c"), _REJECTS, *_FIXES)
    answer = home.sprint(task("a"), task("b"), task("c"), task("d", "b"))
    assert answer.code == 10
    assert answer.statuses == {"a": "Done", "b": "Escalated", "c": "Escalated", "d": "Blocked"}
    return home


def _forge(home: Home) -> dict[str, Any]:
    """Return the visible objects of the forge; numbers may differ, as effects run side by side."""
    issues = [home.caloron("issue", "show", str(i["number"])).data for i in home.issues()]
    return {
        "issues": sorted(
            (i["title"], i["state"], sum("iscarded" in c["body"] for c in i["comments"]))
            for i in issues
        ),
        "pulls": sorted((p["title"], p["state"]) for p in home.pulls()),
        "tasks": {t["id"]: t["status"] for t in home.caloron("show", "1").data["tasks"]},
    }


def test_discard_closes_open_work_with_a_comment_and_keeps_merged_work(mixed: Home) -> None:
    merged = mixed.files()
    tried = mixed.caloron("discard", "--dry-run")
    assert tried.code == 9
    targets = [action["target"] for action in tried.json["planned_actions"]]
    assert "b (Escalated)" in targets
    assert any(target.startswith("pull request #") for target in targets)
    assert mixed.issues("open")

    answer = mixed.caloron("discard", "--yes")
    assert answer.code == 0, answer
    assert answer.data["cancelled"] == ["b", "c", "d"]
    assert answer.data["merged"] == ["a"]
    assert answer.data["discarded_by"] == "Ada"
    assert mixed.issues("open") == []
    assert mixed.pulls("open") == []
    assert [p["state"] for p in mixed.pulls() if "[c]" in p["title"]] == ["closed"]
    assert mixed.files() == merged
    (b,) = [i for i in mixed.issues() if i["title"] == "Task b"]
    assert "Discarded by Ada" in mixed.comments(b["number"])[-1]

    # The work of the agents is kept, and the answer names it.
    branch = "refs/heads/agent/c/demo-1"
    assert any(kept.endswith(branch) for kept in answer.data["kept"])
    assert mixed.git("show", f"{branch}:c.txt")
    # Nothing waits any more, and nothing goes on.
    assert mixed.caloron("inbox").data["items"] == []
    assert mixed.caloron("resume").code == 8
    assert mixed.caloron("status").data["last_sprint"]["phase"] == "ended"
    assert mixed.caloron("discard", "--yes").code == 0
    (event,) = mixed.events("sprint_discarded")
    assert event == {"sprint": "demo-1", "by": "Ada"}

    command = answer.data["undo"].split()
    assert command[:2] == ["caloron", "revert"]
    before = mixed.attempts("implement")
    reverted = mixed.caloron(*command[1:], "--yes")
    assert reverted.code == 0, reverted
    assert mixed.files() == {}, "the printed command reverts the merged work"
    # A discarded sprint stays discarded.
    assert mixed.attempts("implement") == before
    assert mixed.caloron("show", "1").data["phase"] == "ended"
    assert mixed.caloron("resume").code == 8


def test_discard_lists_the_open_work_and_needs_a_yes_but_no_agent_cli(mixed: Home) -> None:
    mixed.fixture.unlink()
    assert mixed.caloron("sprint", "another", "--yes").code == 2
    for reply in ("", "n\n"):
        answer = mixed.caloron("discard", stdin=reply, json=False)
        assert answer.code == 1
        assert "cancel task b" in answer.stderr
        assert "merged work stays: a" in answer.stderr
    assert mixed.issues("open")
    assert mixed.caloron("discard", stdin="y\n", json=False).code == 0
    assert mixed.issues("open") == []


def test_a_sprint_with_an_unapproved_plan_or_without_a_plan_can_be_discarded(home: Home) -> None:
    home.script(does("po", output=json.dumps([task("a"), task("b", "a")])))
    assert home.caloron("sprint", "go", "--plan-only").code == 0
    answer = home.caloron("discard", "--yes")
    assert answer.code == 0, answer
    assert answer.data["cancelled"] == ["a", "b"]
    assert home.issues() == []
    home.script(does("po", output="no plan today"))
    assert home.caloron("sprint", "go", "--yes").code == 8
    assert home.caloron("inbox").data["items"]
    assert home.caloron("discard", "--yes").code == 0
    assert home.caloron("inbox").data["items"] == []


def test_resume_continues_an_earlier_sprint_after_the_last_was_discarded(
    home: Home,
) -> None:
    home.script(does("po", output=json.dumps([task("a")])), writes("a"))
    assert home.caloron("sprint", "--plan-only", "first").code == 0
    assert home.caloron("sprint", "--plan-only", "second").code == 0
    assert home.caloron("discard", "--yes").data["sprint_id"] == "demo-2"
    answer = home.caloron("resume", "--yes")
    assert answer.code == 0, answer
    assert answer.data["sprint_id"] == "demo-1"


def test_discard_ends_agents_of_a_dead_engine_and_saves_their_work(home: Home) -> None:
    writing = home.gate("writing")
    home.script(writes("a", run=writing.line))
    running = home.start_sprint(task("a"))
    writing.wait_for_agent()
    assert home.caloron("discard", "--yes").code == 5
    running.kill()
    answer = home.caloron("discard", "--yes")
    assert answer.code == 0, answer
    assert home.processes("shim") == []
    (saved,) = [k for k in answer.data["kept"] if "refs/salvage/" in k]
    folder, ref = saved.rsplit(" ", 1)
    assert home.git("show", f"{ref}:a.txt", repository=Path(folder).name) == b"a\n"


_POINTS = [
    *((f"discard.{when}_commit", 1) for when in ("before", "after")),
    ("tick.before_commit", 2),
    ("tick.after_commit", 1),
    *((f"effect.{step}", k) for step, k in (("intend", 1), ("do", 1), ("do", 4), ("record", 2))),
]


def test_a_discard_that_is_killed_anywhere_has_the_same_result(mixed: Home, tmp_path: Path) -> None:
    def copy(name: str) -> Home:
        made = Home(tmp_path / name)
        shutil.copytree(mixed.path, made.path, ignore=shutil.ignore_patterns("wake"))
        return made

    undisturbed = copy("undisturbed")
    assert undisturbed.caloron("discard", "--yes").code == 0
    expected = _forge(undisturbed)
    assert {state for _, state, _ in expected["issues"]} == {"closed"}
    for number, (name, k) in enumerate(_POINTS):
        home = copy(f"cell-{number}")
        once = home.root / "once"
        at = f"engine|{name}|{k}|{once}"
        killed = home.caloron("discard", "--yes", CALORON_CRASH_AT=at)
        assert killed.code == -9, (name, k, killed)
        assert once.exists()
        if name != "discard.before_commit":
            # Only throwing away goes on: it is decided.
            assert home.caloron("resume").code in (2, 8)
        again = home.caloron("discard", "--yes")
        assert again.code == 0, (name, k, again)
        assert _forge(home) == expected, (name, k)
        assert len(home.events("sprint_discarded")) == 1
        assert os.path.lexists(home.project() / "forge.git")


def test_a_task_without_changes_is_not_called_merged(home: Home) -> None:
    home.script(does("implement", "a", output="nothing to do"), does("implement", "b", exit_code=1))
    answer = home.sprint(task("a"), task("b"))
    assert answer.statuses == {"a": "Done", "b": "Escalated"}
    discarded = home.caloron("discard", "--yes")
    assert (discarded.data["merged"], discarded.data["cancelled"]) == ([], ["b"])
