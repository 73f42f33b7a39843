"""The graphs of the package: named without a path, and run on a real project."""

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
def test_each_composition_passes_the_strict_check_by_its_name(run: Run, name: str) -> None:
    answer = run.data("graph", "check", name)
    assert answer["profile"] == "strict"
    assert run.data("graph", "id", f"{name}.json") == run.data("graph", "id", name)


def test_a_file_in_the_current_folder_precedes_a_composition_of_its_name(
    run: Run, tmp_path: Path
) -> None:
    shipped = run.data("graph", "id", "full_cycle")["composition_id"]
    (tmp_path / "full_cycle").mkdir()
    assert run.data("graph", "id", "full_cycle")["composition_id"] == shipped
    (tmp_path / "full_cycle.json").write_text(wrapped({"op": "Const", "value": 42}))
    for name in ("full_cycle", "full_cycle.json"):
        assert run.data("graph", "run", name)["output"] == 42
    (tmp_path / "full_cycle.json").unlink()
    assert run("graph", "id", "./full_cycle.json")[0] == 3


def test_an_unknown_name_is_refused_with_the_known_names(run: Run) -> None:
    run.refused(3, "full_cycle, ", "graph", "check", "full_circle")
    for name in ("../compositions/kickoff", "__init__", ""):
        assert composition(name) is None


def _run(run: Run, name: str, inputs: Any) -> Any:
    answer = run.data("graph", "run", name, "--input", json.dumps(inputs))
    return answer["output"]


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
    answer = _run(run, "sprint_plan", _GOAL)
    assert [component["name"] for component in answer["components"]] == ["Basket", "Shop"]
    assert "no database" in answer["design_doc"]
    assert len(answer["tasks"]) == 4
    assert answer["written_by"] == "rules"


def test_a_brief_for_a_repository_becomes_a_valid_plan(run: Run, sprinted: Path) -> None:
    brief = {"brief": "Add a basket, then test it", "host": "local", "repo": "demo"}
    answer = _run(run, "kickoff", brief)
    assert answer["checked"] == {"valid": True, "errors": []}
    assert answer["dag"]["tasks"]["task-2"]["depends_on"] == ["task-1"]
    run.refused(
        12, "nowhere", "graph", "run", "kickoff", "-i", json.dumps(brief | {"repo": "nowhere"})
    )


def test_the_planner_of_a_kickoff_gets_the_context_of_the_repository(
    run: Run, sprinted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task = {"id": "basket", "title": "Basket", "depends_on": [], "agent_prompt": "Make it."}
    responses = [{"match": ["Build a basket", "Merge", '"default_branch":"main"'],
                  "output": {"tasks": [task]}}]  # fmt: skip
    (tmp_path / "model.json").write_text(json.dumps({"responses": responses}))
    monkeypatch.setenv("CALORON_LLM_PROVIDER", "stub")
    monkeypatch.setenv("CALORON_LLM_FIXTURE", str(tmp_path / "model.json"))
    answer = _run(run, "kickoff", {"brief": "Build a basket", "host": "local", "repo": "demo"})
    assert (list(answer["dag"]["tasks"]), answer["written_by"]) == (["basket"], "model")


def test_a_retro_describes_an_ended_sprint(
    run: Run, sprinted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = _run(run, "retro", {"sprint_id": "demo-1"})["report_markdown"]
    assert page.startswith("# Retro of sprint demo-1\n\n> go\n\n- 1 of 1 tasks done")
    assert "All tasks were completed" in page
    own = (sprinted / "workspace" / "retro" / "sprint-demo-1.md").read_text()
    dashboard = "## KPI dashboard"
    answer, known = (text.partition(dashboard)[2] for text in (page, own))
    assert answer == known
    assert "| Fix rounds | 1 |" in answer
    reply = {"themes": ["It was rejected once."], "improvements": [], "learnings": ["small tasks"],
            "sentiment": "mixed"}  # fmt: skip
    responses = [{"match": ["a (Task a): Done", '"completed_tasks":1'], "output": reply}]
    (tmp_path / "model.json").write_text(json.dumps({"responses": responses}))
    monkeypatch.setenv("CALORON_LLM_PROVIDER", "stub")
    monkeypatch.setenv("CALORON_LLM_FIXTURE", str(tmp_path / "model.json"))
    page = _run(run, "retro", {"sprint_id": "demo-1"})["report_markdown"]
    assert "- It was rejected once." in page
    assert "the analysis by stub" in page
    assert run("graph", "run", "retro", "-i", '{"sprint_id": "demo-2"}')[0] == 12


def test_a_retro_includes_the_feedback_on_the_forge(run: Run, sprinted: Path) -> None:
    from caloron.forge.local.forge import LocalForge

    forge = LocalForge(sprinted)
    body = "---\ncaloron_feedback:\n  task_id: a\n  task_clarity: 2\n  self_assessment: failed\n---"
    forge.comment(1, body)
    forge.close()
    page = _run(run, "retro", {"sprint_id": "demo-1"})["report_markdown"]
    assert "clarity 2/10, failed" in page
    assert "clarity below 5: a 2/10" in page


_FLAT = {"sprint_id": "demo-9", "tasks": {}}
_ISO = "2026-04-15T10:00:00Z"


def test_a_poll_accepts_the_time_from_the_state_of_a_tick(run: Run, sprinted: Path) -> None:
    inputs = {"repo": "demo", "host": "local", "since": _ISO}
    code, answer = run("stage", "run", "github_poll_events", "--input", json.dumps(inputs))
    assert code == 0, answer
    assert answer["data"]["output"]["events"], "the poll reports no events"
    again = inputs | {"since": answer["data"]["output"]["polled_at"]}
    code, answer = run("stage", "run", "github_poll_events", "--input", json.dumps(again))
    assert (code, answer["data"]["output"]["events"]) == (0, [])
    refused = inputs | {"since": "yesterday"}
    assert run("stage", "run", "github_poll_events", "--input", json.dumps(refused))[0] == 12


def test_a_tick_accepts_the_inputs_of_the_seeds(run: Run, sprinted: Path) -> None:
    """The inputs lack `now` and contain the time of the last tick."""
    agents = {"a": {"last_heartbeat_at": _ISO, "task_started_at": _ISO}}
    inputs = {
        "repo": "demo", "since": _ISO, "token_env": "GITHUB_TOKEN", "host": "local",
        "state": _FLAT, "stall_threshold_m": 20, "agents": agents, "interventions": {},
        "shell_url": "", "sprint_id": "demo-9",
    }  # fmt: skip
    answer = _run(run, "sprint_tick_core", inputs)
    assert answer["interventions"] == {"a": {"count": 1}}, "silent since April, by the clock"
    stored = {"state": _FLAT, "interventions": {}, "since": _ISO}
    keep = {"namespace": "caloron", "key": "k", "value": stored}
    assert run("stage", "run", "kv_set", "--input", json.dumps(keep))[0] == 0
    for name in stored:
        del inputs[name]
    assert _run(run, "sprint_tick_kv", inputs | {"key": "k"})["interventions"] == {
        "a": {"count": 1}
    }


def test_an_answer_that_depends_on_the_clock_is_not_cached(run: Run, tmp_path: Path) -> None:
    graph = tmp_path / "health.json"
    graph.write_text(wrapped({"op": "Stage", "id": "check_agent_health"}))
    agents = {"a": {"last_heartbeat_at": _ISO}}
    for inputs, hits in (({"agents": agents}, 0), ({"agents": agents, "now": 1776247260.0}, 1)):
        line = ("graph", "run", str(graph), "--input", json.dumps(inputs | {"limits": None}))
        assert run.data(*line)["output"]["results"][0]["agent_id"] == "a"
        assert run.data(*line)["cache"]["hits"] == hits


def test_the_design_is_in_every_prompt(run: Run) -> None:
    answer = _run(run, "full_cycle", _GOAL)
    design = _run(run, "sprint_plan", _GOAL)["design_doc"].strip()
    assert "no database" in design
    for task in answer["tasks"]:
        assert design in task["agent_prompt"], task["id"]


def test_a_long_design_is_cut_and_the_task_is_not(run: Run) -> None:
    task = {"id": "a", "title": "A", "depends_on": [], "agent_prompt": "do it", "framework": ""}
    inputs = {"tasks": [task], "review_checks": [], "design_doc": "x" * 200_000}
    line = ("stage", "run", "phases_to_sprint_tasks", "--input", json.dumps(inputs))
    answer = run.data(*line)
    prompt = answer["output"]["tasks"][0]["agent_prompt"]
    assert prompt.startswith("do it")
    assert len(prompt) <= 64_000
