"""The graphs that come with the program: named without a path, and run on a real project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from caloron.stages.compositions import composition, composition_names
from scripts import compositions
from tests.integration.cli.conftest import Run
from tests.support.noether import wrapped


@pytest.mark.parametrize("name", composition_names())
def test_each_is_accepted_by_the_strict_rules_under_its_bare_name(run: Run, name: str) -> None:
    code, told = run("graph", "check", name)
    assert code == 0, told
    assert told["data"]["profile"] == "strict"
    assert run("graph", "id", f"{name}.json")[1]["data"] == run("graph", "id", name)[1]["data"]


def test_a_file_of_that_name_in_the_current_folder_wins(run: Run, tmp_path: Path) -> None:
    shipped = run("graph", "id", "full_cycle")[1]["data"]["composition_id"]
    (tmp_path / "full_cycle").mkdir()
    assert run("graph", "id", "full_cycle")[1]["data"]["composition_id"] == shipped
    (tmp_path / "full_cycle.json").write_text(wrapped({"op": "Const", "value": 42}))
    for name in ("full_cycle", "full_cycle.json"):
        assert run("graph", "run", name)[1]["data"]["output"] == 42
    (tmp_path / "full_cycle.json").unlink()
    assert run("graph", "id", "./full_cycle.json")[0] == 3


def test_a_name_that_means_nothing_is_told_which_ones_there_are(run: Run) -> None:
    code, told = run("graph", "check", "full_circle")
    assert code == 3
    assert "full_cycle, " in told["error"]["hint"]
    for name in ("../compositions/kickoff", "__init__", ""):
        assert composition(name) is None


def _run(run: Run, name: str, given: Any) -> Any:
    code, told = run("graph", "run", name, "--input", json.dumps(given))
    assert code == 0, told
    return told["data"]["output"]


_GOAL = {"goal": "Build a Basket for the Shop.", "constraints": "no database"}


def test_a_goal_becomes_the_same_tasks_by_name_and_by_id(run: Run) -> None:
    assert not compositions.stale(), "run: python scripts/compositions.py"
    by_name, by_id = (_run(run, name, _GOAL) for name in ("full_cycle", "full_cycle_resolved"))
    assert by_name == by_id
    tasks = {task["id"]: task for task in by_name["tasks"]}
    assert tasks["tests-basket"]["depends_on"] == ["impl-basket"]
    assert tasks["review-tests-basket"]["kind"] == "check"
    assert {task["framework"] for task in tasks.values()} == {""}


def test_a_goal_becomes_a_design_and_its_tasks(run: Run) -> None:
    told = _run(run, "sprint_plan", _GOAL)
    assert [one["name"] for one in told["components"]] == ["Basket", "Shop"]
    assert "no database" in told["design_doc"]
    assert len(told["tasks"]) == 4
    assert told["written_by"] == "rules"


def test_a_brief_for_a_repository_becomes_a_valid_plan(run: Run, sprinted: Path) -> None:
    brief = {"brief": "Add a basket, then test it", "host": "local", "repo": "demo"}
    told = _run(run, "kickoff", brief)
    assert told["checked"] == {"valid": True, "errors": []}
    assert told["dag"]["tasks"]["task-2"]["depends_on"] == ["task-1"]
    code, refused = run("graph", "run", "kickoff", "-i", json.dumps(brief | {"repo": "nowhere"}))
    assert code == 12
    assert "nowhere" in refused["error"]["message"]


def test_the_planner_of_a_kickoff_is_told_what_is_in_the_repository(
    run: Run, sprinted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task = {"id": "basket", "title": "Basket", "depends_on": [], "agent_prompt": "Make it."}
    responses = [{"match": ["Build a basket", "Merge", '"default_branch":"main"'],
                  "output": {"tasks": [task]}}]  # fmt: skip
    (tmp_path / "model.json").write_text(json.dumps({"responses": responses}))
    monkeypatch.setenv("CALORON_LLM_PROVIDER", "stub")
    monkeypatch.setenv("CALORON_LLM_FIXTURE", str(tmp_path / "model.json"))
    told = _run(run, "kickoff", {"brief": "Build a basket", "host": "local", "repo": "demo"})
    assert (list(told["dag"]["tasks"]), told["written_by"]) == (["basket"], "model")


def test_a_sprint_that_has_ended_is_looked_back_at(
    run: Run, sprinted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = _run(run, "retro", {"sprint_id": "demo-1"})["report_markdown"]
    assert page.startswith("# Retro of sprint demo-1\n\n> go\n\n- 1 of 1 tasks done")
    assert "All tasks were completed" in page
    own = (sprinted / "workspace" / "retro" / "sprint-demo-1.md").read_text()
    dashboard = "## KPI dashboard"
    told, known = (text.partition(dashboard)[2] for text in (page, own))
    assert told == known
    assert "| Fix rounds | 1 |" in told
    said = {"themes": ["It was rejected once."], "improvements": [], "learnings": ["small tasks"],
            "sentiment": "mixed"}  # fmt: skip
    responses = [{"match": ["a (Task a): Done", '"completed_tasks":1'], "output": said}]
    (tmp_path / "model.json").write_text(json.dumps({"responses": responses}))
    monkeypatch.setenv("CALORON_LLM_PROVIDER", "stub")
    monkeypatch.setenv("CALORON_LLM_FIXTURE", str(tmp_path / "model.json"))
    page = _run(run, "retro", {"sprint_id": "demo-1"})["report_markdown"]
    assert "- It was rejected once." in page
    assert "the analysis by stub" in page
    assert run("graph", "run", "retro", "-i", '{"sprint_id": "demo-2"}')[0] == 12


def test_what_agents_said_on_the_forge_is_in_the_look_back(run: Run, sprinted: Path) -> None:
    from caloron.forge.local import LocalForge

    forge = LocalForge(sprinted)
    body = "---\ncaloron_feedback:\n  task_id: a\n  task_clarity: 2\n  self_assessment: failed\n---"
    forge.comment(1, body)
    forge.close()
    page = _run(run, "retro", {"sprint_id": "demo-1"})["report_markdown"]
    assert "clarity 2/10, failed" in page
    assert "clarity below 5: a 2/10" in page
