"""A plan can wait for approval, and the options of a sprint decide how it starts."""

from __future__ import annotations

import json

import pytest

from tests.support.home import Home, does, task, writes

PLAN = json.dumps([task("a"), task("b", "a")])


@pytest.mark.parametrize("command", [("kickoff",), ("sprint", "--plan-only")])
def test_a_plan_waits_until_a_person_approves_it(home: Home, command: tuple[str, ...]) -> None:
    home.script(does("po", output=PLAN), writes("a"), writes("b"))
    kickoff = home.caloron(command[0], "make it so", *command[1:])
    assert kickoff.code == 0, kickoff
    assert kickoff.data["phase"] == "approval"
    assert [t["depends_on"] for t in kickoff.data["tasks"]] == [[], ["a"]]
    assert kickoff.data["next"] == "caloron resume demo-1 --project demo --yes"
    assert home.issues() == []

    waiting = home.caloron("resume")
    assert waiting.code == 11
    assert waiting.error["hint"].endswith("--yes")
    assert home.issues() == []

    ran = home.caloron("resume", "1", "--yes")
    assert ran.code == 0, ran
    assert set(ran.statuses.values()) == {"Done"}
    assert home.attempts("po") == 1


def test_a_goal_as_a_single_task_needs_no_planner(home: Home) -> None:
    home.script(does("implement", files={"a.txt": "a\n"}))
    answer = home.caloron("sprint", "Fix the Login, please!", "--single", "--yes")
    assert answer.code == 0, answer
    assert list(answer.tasks) == ["fix-the-login-please"]
    assert answer.data["tasks"][0]["title"] == "Fix the Login, please!"
    assert home.attempts("po") == 0
    assert home.files() == {"a.txt": b"a\n"}


@pytest.mark.parametrize("goal", ["日本語", "po", "baseline", "!!!", "x" * 5000])
def test_any_goal_makes_a_task_with_a_good_name(home: Home, goal: str) -> None:
    home.script()
    answer = home.caloron("sprint", goal, "--single", "--dry-run")
    assert answer.code == 9, answer
    (run,) = [a["target"] for a in answer.json["planned_actions"] if a["action"] == "run task"]
    assert 0 < len(run) <= 64
    assert run not in ("po", "baseline")


def test_a_planner_is_stopped_after_the_configured_time(home: Home) -> None:
    home.script(does("po", run="sleep 1000"))
    answer = home.caloron("sprint", "go", "--planner-timeout", "0.5", "--yes")
    assert answer.code == 8, answer
    assert home.caloron("config", "get", "planner_timeout_s").data["value"] == 900
    for refused in ("soon", "0", "-1", "nan", "inf", "1e99"):
        for option in ("--planner-timeout", "--timeout", "--budget", "--parallel"):
            assert home.caloron("sprint", "go", option, refused).code == 2


def test_a_dry_run_of_a_sprint_lists_its_tasks_and_begins_nothing(home: Home) -> None:
    home.script()
    plan = home.plan(task("a"), task("b", "a"))
    answer = home.caloron("sprint", "go", "--plan", str(plan), "--dry-run")
    assert answer.code == 9
    assert [a["target"] for a in answer.json["planned_actions"]] == ["demo-1", "a", "b"]
    asked = home.caloron("sprint", "go", "--plan-only", "--planner-timeout", "auto", "--dry-run")
    assert "planner" in asked.json["planned_actions"][1]["action"]
    assert home.caloron("history").data["total"] == 0
    assert not (home.project() / "ledger.sqlite").exists()


def test_a_goal_of_bytes_that_are_no_text_is_refused(home: Home) -> None:
    home.script(does("implement", files={"a.txt": "a\n"}))
    answer = home.caloron("sprint", "caf\udce9", "--single", "--yes")
    assert answer.code == 2, answer
    assert "UTF-8" in answer.error["message"]
    assert home.caloron("history").data["total"] == 0
