"""Plans: read from prose, checked as a whole, refused with every error named."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloron.domain.model import plan as plan_module
from caloron.domain.model.plan import (
    RESERVED,
    PlannedTask,
    PlanProblem,
    chain_lengths,
    find_cycle,
    find_plan,
    parse_plan,
)
from caloron.domain.model.roles import ANALYST, PLANNER, REVIEWER, shown_role
from caloron.domain.model.sprint import MainHealth, Sprint, SprintSettings, State
from caloron.domain.model.status import Status
from caloron.testing import SprintDriver


def raw(id: str, *needs: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "title": id, "agent_prompt": "do it", "depends_on": list(needs)} | more


def errors_of(plan: object, **how: Any) -> tuple[str, ...]:
    with pytest.raises(PlanProblem) as refused:
        parse_plan(plan, **how)
    return refused.value.errors


TASKS = [{"id": "a"}, {"id": "b", "depends_on": ["a"]}]
TEXT = json.dumps(TASKS)


@pytest.mark.parametrize(
    "answer",
    [
        TEXT,
        f"Here is the plan:\n```json\n{TEXT}\n```\nGood luck!",
        f"I thought of [1, 2, 3] and [x] and [] and [[]] first.\n{TEXT}",
        f'{{"tasks": {TEXT}}}',
        f"Steps [a, b: {TEXT}",
        f'{TEXT}\nor else\n[{{"id": "other"}}]',
        f"\ufeffpläne ✓ {TEXT}",
        "[" * 50 + TEXT,
    ],
    ids=["bare", "fence", "other lists", "in an object", "broken list", "second", "text", "depth"],
)
def test_the_first_list_of_objects_in_an_answer_is_the_plan(answer: str) -> None:
    assert find_plan(answer) == TASKS


@pytest.mark.parametrize("answer", ["", "no plan", "[]", "[1, 2]", '[{"id": "a"}, 3]', "[{]", "["])
def test_an_answer_without_a_list_of_objects_has_no_plan(answer: str) -> None:
    with pytest.raises(PlanProblem, match="no JSON list of task objects"):
        find_plan(answer)


@given(st.text(alphabet='[]{}",:ab1 \\n', max_size=60))
def test_any_answer_has_a_plan_or_is_refused(answer: str) -> None:
    try:
        tasks = find_plan(answer)
    except PlanProblem:
        return
    assert tasks
    assert all(isinstance(task, dict) for task in tasks)


def test_an_answer_of_brackets_alone_does_not_take_forever() -> None:
    for answer in ("[" * 1_000_000, "[{" * 20_000, '[{"a":' * 20_000):
        with pytest.raises(PlanProblem):
            find_plan(answer)


def test_a_plan_keeps_every_field() -> None:
    (task,) = parse_plan(
        [raw("a", kind="check", framework="stub", acceptance=["x"], files=["f"], unknown=1)],
        frameworks=("stub",),
    )
    assert task == PlannedTask(
        id="a", title="a", agent_prompt="do it", kind="check", framework="stub",
        acceptance=("x",), files=("f",),
    )  # fmt: skip


@pytest.mark.parametrize("plan", [[], {}, None, "x", 3])
def test_a_plan_is_a_list_of_tasks(plan: object) -> None:
    assert errors_of(plan) == ("a plan is a JSON list of at least one task object",)


def test_a_plan_has_a_largest_size() -> None:
    many = [raw(f"t{n}") for n in range(plan_module.MAX_TASKS + 1)]
    assert errors_of(many) == ("the plan has 201 tasks; at most 200 are allowed",)
    assert len(parse_plan(many[:-1])) == 200


@pytest.mark.parametrize(
    ("task", "error"),
    [
        (raw("A b"), "an id is 1 to 64 characters"),
        (raw("x" * 65), "an id is 1 to 64 characters"),
        (raw("", title="t"), "an id is 1 to 64 characters"),
        (raw("-rf"), "an id is 1 to 64 characters"),
        (raw("../x"), "an id is 1 to 64 characters"),
        (raw("a\n"), "an id is 1 to 64 characters"),
        (raw("a", title=" "), "title is empty"),
        (raw("a", title="x" * 201), "title has 201 characters; at most 200"),
        (raw("a", agent_prompt=""), "agent_prompt is empty"),
        (raw("a", agent_prompt="x" * 64_001), "agent_prompt has 64001 characters"),
        (raw("a", agent_prompt="x\0y"), "agent_prompt holds a NUL character"),
        (raw("a", kind="party"), "Invalid enum value"),
        (raw("a", depends_on="b"), "depends_on"),
        ({"id": "a", "title": "a"}, "agent_prompt"),
        (raw("a") | {"id": 7}, "id"),
        (raw("a", "a"), "depends on itself"),
        (raw("a", "b"), "depends on unknown task 'b'"),
        (raw("a", framework="gpt"), "unknown framework 'gpt' (known: stub)"),
        ("just text", "task 1"),
    ],
)
def test_an_error_names_the_task_and_what_is_wrong(task: object, error: str) -> None:
    (message,) = errors_of([task], frameworks=("stub",))
    assert error in message
    name = task["id"] if isinstance(task, dict) and isinstance(task["id"], str) else None
    assert (f"task {name!r}" if name is not None else "task 1") in message


def test_every_error_is_reported_at_once() -> None:
    plan = [raw("a", "a", "x"), raw("b", framework="gpt"), raw("b")]
    assert errors_of(plan, frameworks=("stub",)) == (
        "task 'b' appears 2 times",
        "task 'a' depends on itself",
        "task 'a' depends on unknown task 'x'",
        "task 'b': unknown framework 'gpt' (known: stub)",
    )


def test_a_cycle_is_named_by_its_own_tasks_only() -> None:
    plan = [raw("a", "c"), raw("b", "a"), raw("c", "b"), raw("d", "c"), raw("e")]
    assert errors_of(plan) == ("the dependencies form a cycle: a → c → b → a",)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[PlannedTask, ...]:
    """Return tasks with random dependencies."""
    ids = [f"t{n}" for n in range(draw(st.integers(1, 7)))]
    return tuple(
        PlannedTask(
            id=i,
            title=i,
            agent_prompt=i,
            depends_on=tuple(draw(st.sets(st.sampled_from(ids), max_size=3)) - {i}),
        )
        for i in ids
    )


@given(graphs())
def test_a_cycle_is_found_exactly_when_the_tasks_cannot_be_put_in_order(
    tasks: tuple[PlannedTask, ...],
) -> None:
    cycle = find_cycle(list(tasks))
    needs = {t.id: set(t.depends_on) for t in tasks}
    order: list[str] = []
    while ready := [i for i in needs if i not in order and needs[i] <= set(order)]:
        order += ready
    assert bool(cycle) == (len(order) < len(tasks))
    for task, needed in pairwise(cycle):
        assert needed in needs[task]


@given(graphs())
def test_the_chain_of_a_task_is_longer_than_the_chains_of_its_dependents(
    tasks: tuple[PlannedTask, ...],
) -> None:
    if find_cycle(list(tasks)):
        return
    lengths = chain_lengths(tasks)
    for task in tasks:
        followers = [t.id for t in tasks if task.id in t.depends_on]
        assert lengths[task.id] == 1 + max((lengths[f] for f in followers), default=0)


def test_a_long_chain_of_tasks_is_no_problem() -> None:
    plan = parse_plan([raw("t0")] + [raw(f"t{n}", f"t{n - 1}") for n in range(1, 200)])
    assert chain_lengths(plan)["t0"] == 200


def test_a_field_that_resembles_a_known_field_is_a_typing_error() -> None:
    plan = [raw("a"), raw("b") | {"depend_on": ["a"]}]
    assert errors_of(plan) == ("task 'b': unknown field 'depend_on'; did you mean 'depends_on'?",)


def test_an_unknown_field_is_accepted() -> None:
    assert parse_plan([raw("a", component="Basket")])[0].id == "a"


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_an_id_of_the_sprints_own_work_is_refused_for_a_task(name: str) -> None:
    message = f"task '{name}': the id `{name}` is used by the sprint itself; choose another"
    assert errors_of([raw(name)]) == (message,)


def test_every_name_of_the_sprints_own_work_and_agents_is_reserved() -> None:
    """A goal without a plan on a main that is verified, with a model for the retro."""
    sprint = Sprint(
        id="shop-1",
        number=1,
        goal="a shop",
        main_health=MainHealth(baseline=""),
        settings=SprintSettings(retro_by="model"),
    )
    world = SprintDriver(State(sprint=sprint))
    names = {REVIEWER, PLANNER, ANALYST}
    for _ in range(40):
        world.settle()
        names |= {item.split("/")[1] for item, (task, _) in world.queue.items() if not task}
        item = next(iter(world.queue), "")
        if item:
            world.end(item)
        if item.endswith("-po"):
            answer = json.dumps([raw("a")])
            world.facts[:] = [msgspec.structs.replace(world.facts[-1], answer=answer)]
    assert world.status("a") is Status.DONE
    # People call the planner by another name than its records do.
    assert names | set(map(shown_role, names)) == RESERVED
