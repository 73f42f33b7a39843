"""Plans in the form of the original: each field is mapped, refused, or named in a warning."""

from __future__ import annotations

from typing import Any

import pytest

from caloron.domain.compat.plan_forms import Plan, parse_plan_file, parse_plan_output
from caloron.domain.model.plan import PlanProblem

FRAMEWORKS = ("stub", "claude-code")


def agent(id: str, **spec: Any) -> dict[str, Any]:
    return {"id": id, "role": "developer"} | ({"spec": spec} if spec else {})


def task(id: str, *needs: str, **more: Any) -> dict[str, Any]:
    named = {"id": id, "title": f"Title of {id}", "issue_template": f"Write {id}"}
    return named | {"assigned_to": "dev", "depends_on": list(needs)} | more


def dag(*tasks: dict[str, Any], agents: Any = None, **more: Any) -> dict[str, Any]:
    return {"agents": agents if agents is not None else [agent("dev")], "tasks": list(tasks)} | more


def read(raw: object) -> Plan:
    return parse_plan_file(raw, frameworks=FRAMEWORKS)


def errors_of(raw: object) -> str:
    with pytest.raises(PlanProblem) as refused:
        read(raw)
    return "; ".join(refused.value.errors)


def test_the_issue_is_the_prompt_and_the_spec_selects_the_agent() -> None:
    spec = agent("dev", framework="claude-code", extra_instructions='Say "please".')
    plan = read(dag(task("a"), task("b", "a", framework="stub"), agents=[spec]))
    a, b = plan.tasks
    assert a.agent_prompt == 'Write a\n\nSay "please".'
    assert (a.framework, b.framework) == ("claude-code", "stub")
    assert b.depends_on == ("a",)
    assert plan.warnings == ()


def test_the_prompt_of_a_task_overrides_the_template() -> None:
    (parsed,) = read(dag(task("a", agent_prompt="mine"))).tasks
    assert parsed.agent_prompt == "mine"


def test_a_field_without_effect_is_named_in_a_warning() -> None:
    plan = read(
        dag(
            task("a", reviewed_by="dev", github_issue_number=7, colour="red"),
            agents=[agent("dev", model="strong") | {"definition_path": "dev.yml"}],
            sprint={"id": "s", "max_duration_hours": 4},
            review_policy={"required_approvals": 2, "auto_merge": True, "max_review_cycles": 3},
            escalation={"stall_threshold_minutes": 5, "pager": "yes"},
            extra=1,
        )
    )
    fields = [warning.partition(":")[0] for warning in plan.warnings]
    assert fields == [
        "agents[0].definition_path",
        "agents[0].spec.model",
        "tasks[0].reviewed_by",
        "tasks[0].github_issue_number",
        "tasks[0].colour",
        "sprint.id",
        "sprint.max_duration_hours",
        "review_policy.required_approvals",
        "review_policy.max_review_cycles",
        "escalation.stall_threshold_minutes",
        "escalation.pager",
        "extra",
    ]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (dag(task("a"), task("a")), "task 'a' appears 2 times"),
        (dag(task("a"), agents=[agent("dev"), agent("dev")]), "agents[1].id: 'dev' is there twice"),
        (dag(task("a"), agents=[{"role": "dev"}]), "agents[0].id: expected"),
        (dag(task("a"), agents={"dev": {}}), "agents: expected a list"),
        (dag(task("a", assigned_to="nobody")), "tasks[0].assigned_to: 'nobody' is none of"),
        (dag(task("a", reviewed_by="nobody")), "tasks[0].reviewed_by: 'nobody' is none of"),
        (dag(task("a", assigned_to=["dev"])), "tasks[0].assigned_to: ['dev'] is none of"),
        (dag(task("a", "ghost")), "depends on unknown task 'ghost'"),
        (dag(task("a", "b"), task("b", "a")), "form a cycle"),
        (dag(task("a", depend_on=[])), "did you mean 'depends_on'"),
        (dag({"id": "a", "title": "A"}), "agent_prompt"),
        (dag(task("a", issue_template=3)), "agent_prompt"),
        (dag(task("a"), agents=[agent("dev", framework="aider")]), "unknown framework 'aider'"),
        (dag(), "at least one task"),
        ({"tasks": [3]}, "task 1"),
        ({"no": "tasks"}, "a JSON list"),
    ],
)
def test_an_invalid_plan_is_refused_with_the_field(raw: object, words: str) -> None:
    assert words in errors_of(raw)


def test_an_object_that_contains_only_a_list_is_that_list() -> None:
    raw = [{"id": "a", "title": "A", "agent_prompt": "do it", "component": "Core"}]
    for form in (raw, {"tasks": raw}):
        plan = read(form)
        assert [t.id for t in plan.tasks] == ["a"]
        assert plan.warnings == ("tasks[0].component: not known; it has no effect",)


_A, _B = {"id": "a", "title": "A", "agent_prompt": "x"}, {"title": "B", "depends_on": ["a"]}


@pytest.mark.parametrize(
    "output",
    [
        [_A, {"id": "b", "agent_prompt": "B", **_B}],
        {"tasks": [_A, {"id": "b", "agent_prompt": "B", **_B}], "design_doc": "# A"},
        {"tasks": {"a": _A, "b": _B}},
        {"dag": {"sprint_id": "s", "tasks": {"a": _A, "b": _B}}, "written_by": "rules"},
        {"dag": {"tasks": [_A, {"id": "b", "agent_prompt": "B", **_B}]}, "tasks": "not these"},
        {"tasks": {"a": _A | {"status": "Pending", "pr_number": None, "component": "C"}, "b": _B}},
    ],
)
def test_a_planning_graph_may_give_its_tasks_in_several_shapes(output: Any) -> None:
    plan = parse_plan_output(output, frameworks=FRAMEWORKS)
    assert [(t.id, t.title, t.depends_on) for t in plan.tasks] == [
        ("a", "A", ()),
        ("b", "B", ("a",)),
    ]
    assert plan.tasks[1].agent_prompt == "B"
    assert plan.warnings == ()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (None, "gave no tasks"),
        ({"tasks": None}, "gave no tasks"),
        ({"dag": {"tasks": 3}}, "gave no tasks"),
        ({"tasks": {}}, "at least one task"),
        ({"tasks": {"a": 3}}, "task 1"),
        ({"tasks": [{"id": "a", "title": "A"}]}, "agent_prompt"),
        ({"tasks": {"a": _A | {"depend_on": []}}}, "did you mean 'depends_on'"),
    ],
)
def test_a_planning_graph_that_gives_no_plan_is_refused_with_the_reason(
    output: Any, message: str
) -> None:
    with pytest.raises(PlanProblem, match=message):
        parse_plan_output(output)
