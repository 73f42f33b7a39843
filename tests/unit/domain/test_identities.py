"""Manifests and versions of agents, and records of sprints."""

from __future__ import annotations

from typing import Any

import pytest

from caloron.domain.model.feedback import Feedback
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.status import Status
from caloron.domain.reporting.history import history_record
from caloron.domain.reporting.identities import (
    default_skills,
    manifest_of,
    next_version,
    versions_of,
)
from caloron.domain.reporting.learnings import record_of
from tests.unit.domain.test_retro import run, sprint_of, task


def test_a_manifest_contains_only_decided_fields() -> None:
    plan = PlannedTask(id="cart", title="The cart", agent_prompt="x" * 900)
    manifest = manifest_of(plan, framework="stub")
    assert manifest["name"] == "caloron-agent-cart"
    assert "model" not in manifest
    assert "skills" not in manifest
    assert len(manifest["behavior"]["system_override"]) == 500
    named = manifest_of(plan, framework="claude-code", model="claude/claude-x")
    assert named["model"] == {"preferred": ["claude/claude-x"]}


def test_each_agent_that_ran_has_a_version_with_the_framework_and_tools_it_used() -> None:
    feedback = Feedback(task_clarity=7, tools_used=("pytest",), notes="fine")
    state = sprint_of(task("a", log__feedback=feedback), task("b", Status.ESCALATED), task("idle"))
    runs = (
        run("a", framework="claude-code", model="opus", seconds=4.0, tools={"Edit": 2}),
        run("a", "review", framework="stub", model="r", seconds=1.0),
        run("b", end="failed"),
    )
    versions = versions_of(state, runs, 20.0)
    assert versions.keys() == {"a", "b", "reviewer-1"}
    a = versions["a"]
    assert (a["version"], a["framework"], a["model"]) == ("1.0", "claude-code", "opus")
    assert a["performance"] == {
        "clarity": 7.0,
        "completion_rate": 1.0,
        "review_cycles": 0,
        "time_s": 4.0,
        "tools": ["Edit", "pytest"],
        "notes": "fine",
    }
    assert versions["b"]["performance"]["completion_rate"] == 0.0
    assert "clarity" not in versions["b"]["performance"]
    assert (versions["reviewer-1"]["framework"], versions["reviewer-1"]["model"]) == ("stub", "r")


@pytest.mark.parametrize(
    ("versions", "following"),
    [((), "1.0"), (("1.0",), "1.1"), (("1.9", "1.10"), "1.11"), (("2.0", "1.7"), "2.1")],
)
def test_a_version_follows_the_highest_existing_version(
    versions: tuple[str, ...], following: str
) -> None:
    assert next_version([{"version": version} for version in versions]) == following


@pytest.mark.parametrize("entries", ["text", [None, 3], [{"version": None}], [{"version": "x.y"}]])
def test_invalid_versions_are_ignored(entries: Any) -> None:
    assert next_version(entries) == "1.0"


def test_every_skill_has_all_fields_and_needs_no_credentials() -> None:
    for skill in default_skills(("stub",)).values():
        assert skill.keys() == {
            "type", "description", "frameworks", "mcp_url", "credentials", "tags", "dependencies",
            "nix_packages",
        }  # fmt: skip
        assert (skill["type"], skill["credentials"], skill["mcp_url"]) == ("skill", [], "")


def test_a_record_has_every_number_of_its_sprint() -> None:
    feedback = Feedback(task_clarity=4, tools_used=("pytest",), blockers=('no "price" module',))
    state = sprint_of(
        task("a", log__feedback=feedback), task("b", Status.ESCALATED, reason="stuck")
    )
    state.sprint.ended_at = state.sprint.settings.created_at + 60
    ended = state.sprint.ended_at
    record = history_record(record_of(state, (run("a", seconds=5.0),), ended), 1, ended)
    assert record["exit_code"] == 10
    assert (record["total_tasks"], record["completed_tasks"], record["failed_tasks"]) == (2, 1, 1)
    assert (record["avg_clarity"], record["duration_s"], record["sprint_time_s"]) == (4.0, 60, 60)
    assert record["blockers"] == ['no "price" module', "b: stuck"]
    assert record["tools_used"] == ["pytest"]


def test_a_sprint_without_a_plan_has_zeros_and_no_clarity() -> None:
    state = sprint_of(planning__failure="the planner failed")
    record = history_record(record_of(state, (), 0.0), 1, 0.0)
    assert (record["exit_code"], record["total_tasks"], record["completed_tasks"]) == (8, 0, 0)
    assert "avg_clarity" not in record
    done = history_record(record_of(sprint_of(task("a")), (), 0.0), 1, 0.0)
    assert done["exit_code"] == 0
