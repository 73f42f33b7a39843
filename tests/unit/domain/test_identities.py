"""Agents as files tell of them, and sprints as records."""

from __future__ import annotations

from typing import Any

import pytest

from caloron.domain.compat.default_skills import default_skills
from caloron.domain.model.feedback import Feedback
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.status import Status
from caloron.domain.reporting.history import exit_code_of, history_record
from caloron.domain.reporting.identities import manifest_of, next_version, versions_of
from tests.unit.domain.test_retro import run, sprint_of, task


def test_a_manifest_says_only_what_is_decided() -> None:
    plan = PlannedTask(id="cart", title="The cart", agent_prompt="x" * 900)
    found = manifest_of(plan, framework="stub")
    assert found["name"] == "caloron-agent-cart"
    assert "model" not in found
    assert "skills" not in found
    assert len(found["behavior"]["system_override"]) == 500
    named = manifest_of(plan, framework="claude-code", model="claude/claude-x")
    assert named["model"] == {"preferred": ["claude/claude-x"]}


def test_everybody_who_worked_has_a_version_with_what_was_really_used() -> None:
    said = Feedback(task_clarity=7, tools_used=("pytest",), notes="fine")
    state = sprint_of(task("a", log__feedback=said), task("b", Status.ESCALATED), task("idle"))
    runs = (
        run("a", framework="claude-code", model="opus", seconds=4.0, tools={"Edit": 2}),
        run("a", "review", framework="stub", model="r", seconds=1.0),
        run("b", end="failed"),
    )
    found = versions_of(state, runs, 20.0)
    assert found.keys() == {"a", "b", "reviewer-1"}
    a = found["a"]
    assert (a["version"], a["framework"], a["model"]) == ("1.0", "claude-code", "opus")
    assert a["performance"] == {
        "clarity": 7.0,
        "completion_rate": 1.0,
        "review_cycles": 0,
        "time_s": 4.0,
        "tools": ["Edit", "pytest"],
        "notes": "fine",
    }
    assert found["b"]["performance"]["completion_rate"] == 0.0
    assert "clarity" not in found["b"]["performance"]
    assert (found["reviewer-1"]["framework"], found["reviewer-1"]["model"]) == ("stub", "r")


@pytest.mark.parametrize(
    ("versions", "following"),
    [((), "1.0"), (("1.0",), "1.1"), (("1.9", "1.10"), "1.11"), (("2.0", "1.7"), "2.1")],
)
def test_a_version_follows_those_of_others(versions: tuple[str, ...], following: str) -> None:
    assert next_version([{"version": version} for version in versions]) == following


@pytest.mark.parametrize("entries", ["text", [None, 3], [{"version": None}], [{"version": "x.y"}]])
def test_versions_that_are_none_are_no_obstacle(entries: Any) -> None:
    assert next_version(entries) == "1.0"


def test_every_skill_has_the_whole_shape_and_asks_for_nothing_that_is_not_there() -> None:
    for skill in default_skills(("stub",)).values():
        assert skill.keys() == {
            "type", "description", "frameworks", "mcp_url", "credentials", "tags", "dependencies",
            "nix_packages",
        }  # fmt: skip
        assert (skill["type"], skill["credentials"], skill["mcp_url"]) == ("skill", [], "")


def test_a_record_holds_every_number_of_its_own_sprint() -> None:
    said = Feedback(task_clarity=4, tools_used=("pytest",), blockers=('no "price" module',))
    state = sprint_of(task("a", log__feedback=said), task("b", Status.ESCALATED, reason="stuck"))
    state.sprint.ended_at = state.sprint.settings.created_at + 60
    record = history_record(state, (run("a", seconds=5.0),))
    assert record["exit_code"] == 10
    assert (record["total_tasks"], record["completed_tasks"], record["failed_tasks"]) == (2, 1, 1)
    assert (record["avg_clarity"], record["duration_s"], record["sprint_time_s"]) == (4.0, 60, 60)
    assert record["blockers"] == ['no "price" module', "b: stuck"]
    assert record["tools_used"] == ["pytest"]


def test_a_sprint_without_a_plan_has_zeros_and_a_clarity_that_nobody_told_is_not_there() -> None:
    state = sprint_of(planning__failure="the planner failed")
    record = history_record(state, ())
    assert (record["exit_code"], record["total_tasks"], record["completed_tasks"]) == (8, 0, 0)
    assert "avg_clarity" not in record
    assert exit_code_of(sprint_of(task("a"))) == 0
