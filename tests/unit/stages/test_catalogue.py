"""The catalogue: every stage is declared, satisfies its examples, and runs alone."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from importlib import import_module
from inspect import isfunction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from caloron.graph.catalogue import Catalogue
from caloron.graph.prepare import prepare
from caloron.graph.runners.examples import run_examples
from caloron.graph.runtime.run import run
from caloron.graph.types import show
from caloron.ids import is_valid_id
from caloron.stages import catalogue
from caloron.stages.catalogue import CatalogueStages, catalogue_stages, stage_function
from caloron.stages.compositions import composition
from caloron.stages.values import to_json
from caloron.testing import SprintDriver
from scripts import catalogue as page
from tests.support.noether import wrapped
from tests.support.sprints import DIAMOND

STAGES = Catalogue(catalogue_stages())
BY_NAME = {stage.name: stage for stage in catalogue_stages()}


def _answer(name: str, inputs: Any) -> Any:
    """Run a stage as a graph does, with type checks of its input and its answer."""
    prepared = prepare(wrapped({"op": "Stage", "id": name}), STAGES)
    return run(prepared, inputs, CatalogueStages()).output


def test_every_function_of_a_group_is_declared_and_every_declaration_has_its_function():
    functions = {stage_function(name) for name in BY_NAME}
    assert len(functions) == len(BY_NAME) == 31
    for module in {import_module(function.__module__) for function in functions}:
        public = {name for name, value in vars(module).items() if _is_stage(value, module)}
        assert public <= set(BY_NAME), module


def _is_stage(value: object, module: ModuleType) -> bool:
    name = getattr(value, "__name__", "_")
    return isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")


@pytest.mark.parametrize("stage", catalogue_stages(), ids=lambda stage: stage.name)
def test_a_stage_answers_as_in_its_examples(stage):
    tried = run_examples(stage, STAGES, CatalogueStages())
    assert tried.state != "failed", tried.reasons


def test_the_page_of_the_catalogue_is_up_to_date():
    assert not page.stale(), "run: python scripts/catalogue.py"


def test_a_stage_runs_alone():
    def alone(text: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "caloron.stages", "dag_validate"]
        source = str(Path(catalogue.__file__).parents[2])
        return subprocess.run(
            command, input=text, capture_output=True, text=True, check=False,
            env={"PYTHONPATH": source},
        )  # fmt: skip

    good = alone('{"dag": []}')
    assert good.returncode == 0
    assert json.loads(good.stdout)["valid"] is False
    failed, bad = alone("{}"), alone("{")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "not JSON" in bad.stderr
    wrong = alone("[]")
    assert (wrong.returncode, "expected Record" in wrong.stderr) == (1, True)


def test_the_tick_of_these_stages_is_a_graph_that_strict_accepts():
    prepared = prepare(_shipped("sprint_tick_stateful"), STAGES)
    assert show(prepared.checked.output).startswith("Record { actions_taken: List<Text>")
    core, alias = _shipped("sprint_tick_core"), _shipped("sprint_tick")
    prepare(core, STAGES)
    within = json.loads(_shipped("sprint_tick_stateful"))["root"]["bindings"]["tick_result"]
    assert within["stages"][1] == json.loads(core)["root"]
    assert alias == core


def _shipped(name: str) -> bytes:
    text = composition(name)
    assert text is not None
    return text


def test_a_tick_decides_the_same_as_the_functions_it_is_made_of():
    made = SprintDriver.start(*DIAMOND)
    state = to_json(made.state)
    result = _answer("dag_evaluate", {"state": state, "events": [], "now": 10.0})
    assert set(result["state"]["tasks"]) == {"a", "b", "c", "d"}
    again = _answer("dag_evaluate", {"state": result["state"], "events": [], "now": 10.0})
    assert (again["state"], again["actions"]) == (result["state"], [])


def test_events_move_a_stateless_state_and_keep_unknown_fields():
    reviewed = {"title": "A", "status": "InReview", "pr_number": 7, "issue_number": 3,
                "started_at": "2026-04-08T10:00:00Z", "colour": "red"}  # fmt: skip
    tasks = {"a": reviewed, "b": {"title": "B", "depends_on": ["a"]}}
    inputs = {"state": {"sprint_id": "s", "mine": 1, "tasks": tasks}, "now": 1775642400.0,
             "events": [{"type": "pr_merged", "pr_number": 7, "actor": "x"}]}  # fmt: skip
    result = _answer("dag_evaluate", inputs)
    a, b = result["state"]["tasks"]["a"], result["state"]["tasks"]["b"]
    assert (a["status"], a["completed_at"], a["colour"], result["state"]["mine"]) == (
        "Done", "2026-04-08T10:00:00+00:00", "red", 1)  # fmt: skip
    assert b == {"title": "B", "depends_on": ["a"], "status": "Ready", "issue_number": None,
                 "pr_number": None, "started_at": None, "completed_at": None,
                 "intervention_count": 0}  # fmt: skip
    assert result["actions"] == [
        {"type": "mark_done", "task_id": "a", "issue_number": 3, "pr_number": 7}]  # fmt: skip
    assert [(m["task"], m["new"]) for m in result["moves"]] == [("a", "Done"), ("b", "Ready")]
    supervisor = [{"agent_id": "b", "action": "probe", "reason": "r"}]
    decisions = {"dag_actions": result["actions"], "supervisor_actions": supervisor}
    taken = _answer("execute_actions", decisions)
    assert taken["actions_taken"] == ["done:#3", "probe:b (r)"]


def test_a_bad_event_is_named():
    made = SprintDriver.start(*DIAMOND)
    inputs = {"state": to_json(made.state), "events": [{"type": "no"}], "now": 1.0}
    with pytest.raises(Exception, match=r"events: .*\$\[0\]"):
        _answer("dag_evaluate", inputs)


def test_an_invalid_count_of_interventions_is_refused():
    for bad in ("2", True, {"count": None}, 1.5):
        with pytest.raises(Exception, match="the count of 'a'"):
            _answer("decide_intervention", {"results": [], "interventions": {"a": bad}})


def _flat(**statuses: str) -> dict[str, Any]:
    return {"sprint_id": "s", "tasks": {n: {"title": n, "status": s} for n, s in statuses.items()}}


def test_the_numbers_of_the_comparison_sprint():
    inputs = {"state": _flat(a="Done", b="Done"), "started_at": "2026-04-08T10:00:00Z",
             "ended_at": "2026-04-08T14:00:00+00:00"}  # fmt: skip
    kpis = _answer("compute_sprint_kpis", inputs)
    result = (kpis["completion_rate"], kpis["sprint_days"], kpis["tasks_per_day"])
    assert result == (1.0, 0.2, 12.0)
    with pytest.raises(Exception, match="ended_at"):
        _answer("compute_sprint_kpis", {"state": _flat(a="Done")})
    with pytest.raises(Exception, match="no time"):
        _answer("compute_sprint_kpis", inputs | {"ended_at": "soon"})


_FEEDBACK = {
    "issue_number": 1, "author": "a", "is_parsed_yaml": True,
    "parsed": {"task_id": "a", "task_clarity": 3, "self_assessment": "failed",
               "blockers": ["a dependency was not in the DAG"]},
}  # fmt: skip


def test_feedback_of_agents_is_analysed_and_reported():
    kpis = {"total_tasks": 2, "completed_tasks": 1, "failure_count": 1}
    inputs = {"sprint_id": "shop-1", "feedback_items": [_FEEDBACK, {"is_parsed_yaml": False}]}
    analysis = _answer("analyze_sprint_feedback", inputs | {"kpis": kpis})
    assert {"task-clarity", "dependencies", "failures"} <= {f["rule"] for f in analysis["findings"]}
    assert (analysis["sentiment"], analysis["written_by"]) == ("negative", "rules")
    report = _answer("write_retro_report", inputs | {"kpis": kpis})["report_markdown"]
    assert report.startswith("# Retro of sprint shop-1")
    for part in ("Let a task depend on those", "clarity 3/10, failed", "Tasks done | 1 of 2"):
        assert part in report


def test_a_plan_by_rules_is_a_plan_that_can_be_run():
    brief = "Add a health-endpoint... Then test it, and document it;\n- release 1.2 of it!"
    dag = _answer("generate_sprint_dag", {"brief": brief, "num_agents": 2})["dag"]
    assert [task["title"] for task in dag["tasks"].values()] == [
        "Add a health-endpoint", "test it", "document it", "release 1.2 of it!"]  # fmt: skip
    assert is_valid_id(dag["sprint_id"])
    assert _answer("dag_validate", {"dag": dag}) == {"valid": True, "errors": []}
    for bad in ("", " . , ;"):
        with pytest.raises(Exception, match="brief"):
            _answer("generate_sprint_dag", {"brief": bad})
    with pytest.raises(Exception, match="num_agents"):
        _answer("generate_sprint_dag", {"brief": "x", "num_agents": 0})


def test_an_invalid_plan_is_refused_with_every_reason():
    task = {"id": "a", "title": "A", "depends_on": ["gone"], "agent_prompt": "x"}
    with pytest.raises(Exception, match="appears 2 times") as refused:
        _answer("phases_to_sprint_tasks", {"tasks": [task, task]})
    assert "gone" in str(refused.value)
    with pytest.raises(Exception, match=r"review_checks\[0\]"):
        _answer("phases_to_sprint_tasks", {"tasks": [task], "review_checks": [{"id": "r"}]})
    with pytest.raises(Exception, match="goal: it is empty"):
        _answer("architect_po", {"goal": " "})
    with pytest.raises(Exception, match="components"):
        _answer("dev_po", {"components": []})
    twice = [{"name": "Core!"}, {"name": "core"}]
    ids = [task["id"] for task in _answer("dev_po", {"components": twice})["tasks"]]
    assert ids == ["impl-core", "tests-core", "impl-core-2", "tests-core-2"]


def test_no_stage_that_reads_a_clock_or_a_forge_declares_pure():
    pure = {name for name, stage in BY_NAME.items() if stage.declares("Pure")}
    assert not pure & {"load_tick_state", "save_tick_state", "github_poll_events", "get_pr_status",
                       "collect_sprint_feedback", "fetch_repo_context"}  # fmt: skip
    for name in pure:
        source = inspect.getsource(stage_function(name))
        for reach in ("time.time", "os.", "open_forge", "ensure_context", " open("):
            assert reach not in source, (name, reach)


def test_every_deterministic_stage_has_two_examples():
    pure = [stage for stage in catalogue_stages() if stage.declares("Pure")]
    assert len(pure) >= 15
    assert [stage.name for stage in pure if len(stage.examples) < 2] == []
