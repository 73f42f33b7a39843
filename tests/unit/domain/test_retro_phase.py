"""The answer of a model about a sprint, and the phase that asks the model."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloron.domain.model.effects import CancelWork, StartWork
from caloron.domain.model.facts import Fact, Halt, RunInterrupted, WorkEnded
from caloron.domain.model.retro_answer import InsightProblem, parse_insight
from caloron.domain.model.sprint import Availability, Sprint, State, Unavailable
from caloron.domain.model.status import Step
from caloron.domain.model.task import ForgeLinks, Task
from caloron.domain.model.usage import Usage
from caloron.domain.rules.evaluate import evaluate
from caloron.domain.rules.evaluation import Decision
from caloron.testing import planned
from tests.support.sprints import nested

ADVICE = {
    "category": "Tooling",
    "priority": "low",
    "description": "Do  it\nbetter",
    "evidence": "a\x07 failed",
    "applies_when": "always",
}
GOOD: dict[str, Any] = {
    "themes": ["one"],
    "improvements": [ADVICE],
    "learnings": [],
    "sentiment": "mixed",
}
ITEM = "shop-1/retro/1-retro"


def test_an_answer_in_a_fence_is_read_and_its_texts_become_single_lines() -> None:
    insight = parse_insight(f"Here:\n```json\n{json.dumps(GOOD)}\n```\n", "stub x")
    (advice,) = insight.improvements
    assert (advice.description, advice.evidence) == ("Do it better", "a failed")
    assert insight.by == "stub x"


@pytest.mark.parametrize(
    "changes",
    [
        {"sentiment": "good"},
        {"sentiment": None},
        {"themes": "one"},
        {"themes": ["x"] * 9},
        {"themes": [""]},
        {"themes": [" \n"]},
        {"themes": ["x" * 401]},
        {"learnings": [1]},
        {"improvements": [ADVICE] * 6},
        {"improvements": [ADVICE | {"category": "tooling"}]},
        {"improvements": [ADVICE | {"priority": "urgent"}]},
        {"improvements": [ADVICE | {"applies_when": "\u200b "}]},
        {"improvements": [ADVICE | {"cost_usd": 3}]},
        {"completion_rate": 1.0},
    ],
)
def test_every_other_form_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InsightProblem):
        parse_insight(json.dumps(GOOD | changes), "x")


@pytest.mark.parametrize("name", GOOD)
def test_every_field_is_required(name: str) -> None:
    with pytest.raises(InsightProblem, match=name):
        parse_insight(json.dumps({k: v for k, v in GOOD.items() if k != name}), "x")


@given(st.text())
def test_any_other_text_is_refused_with_the_same_error(text: str) -> None:
    for answer in (text, f"{{{text}}}", "{" * 2000 + text):
        with pytest.raises(InsightProblem):
            parse_insight(answer, "x")


def settled(*, retro: Any = "model", **fields: Any) -> State:
    sprint = nested(
        Sprint, id="shop-1", number=1, goal="g", phase="running", settings__retro_by=retro, **fields
    )
    return State(
        sprint=sprint,
        tasks={"a": Task(plan=planned("a"), step=Step.DONE, links=ForgeLinks(issue=1))},
    )


def after(state: State, *facts: Fact, now: float = 50.0) -> Decision:
    return evaluate(state, facts, now)


def answered(token: int = 1, **fields: Any) -> WorkEnded:
    known: dict[str, Any] = {"answer": json.dumps(GOOD), "framework": "stub"}
    return WorkEnded(item=ITEM, task="", role="retro", token=token, **known | fields)


def test_without_a_model_the_sprint_ends_without_a_retro_phase() -> None:
    decision = after(settled(retro="rules"))
    assert (decision.state.sprint.phase, decision.actions) == ("ended", ())
    assert decision.state.sprint.ended_at == 50.0


def test_the_model_is_asked_once_and_its_time_does_not_count_for_the_sprint() -> None:
    started = after(settled())
    (start,) = started.actions
    assert isinstance(start, StartWork)
    assert (start.work.item, started.state.sprint.phase) == (ITEM, "retro")
    again = after(started.state, now=60.0)
    assert (again.actions, again.state.sprint.phase) == ((), "retro")
    ended = after(again.state, answered(usage=Usage(usd=0.5, model="m")), now=70.0).state.sprint
    assert (ended.phase, ended.ended_at, ended.retro.work) == ("ended", 50.0, None)
    assert ended.retro.answer is not None
    assert (ended.retro.answer.by, ended.retro.answer.sentiment) == ("stub m", "mixed")
    assert (ended.usage.spent.usd, ended.usage.retro_spent.usd) == (0.5, 0.5)
    assert after(State(sprint=ended, tasks=settled().tasks), now=99.0).actions == ()


def test_an_end_that_is_reported_twice_counts_once() -> None:
    state = after(settled()).state
    end = answered(usage=Usage(usd=0.5))
    twice = after(after(state, end, end).state, end).state.sprint
    assert (twice.usage.spent.usd, twice.usage.retro_spent.usd, twice.phase) == (0.5, 0.5, "ended")


def test_the_retro_pays_an_interrupted_run() -> None:
    state = after(settled()).state
    cut = RunInterrupted(item=ITEM, task="", token=1, usage=Usage(usd=0.25))
    sprint = after(state, cut).state.sprint
    assert sprint.usage.spent.usd == sprint.usage.retro_spent.usd == 0.25
    assert sprint.phase == "retro"


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (answered(exit_code=2, last_line="boom"), "the model ended with exit code 2: boom"),
        (answered(timed_out=True), "the model ran out of time"),
        (
            answered(provider_error="quota", provider_message="later"),
            "the model failed (quota): later",
        ),
        (answered(provider_error="auth", provider_message="who"), "the model failed (auth): who"),
        (answered(internal_error="no clone"), "no clone"),
        (answered(limit_hit="memory"), "the model was ended: memory"),
    ],
)
def test_a_failure_ends_the_sprint_at_once_with_the_reason(end: WorkEnded, reason: str) -> None:
    sprint = after(after(settled()).state, end).state.sprint
    assert (sprint.phase, sprint.retro.answer, sprint.retro.problem) == ("ended", None, reason)
    assert sprint.availability == Availability()
    assert sprint.planning.failure == ""


def test_a_second_answer_in_another_form_is_the_last() -> None:
    state = after(settled()).state
    first = after(state, answered(answer="no"))
    (start,) = first.actions
    assert isinstance(start, StartWork)
    assert (start.work.item, start.work.tries) == (ITEM, 2)
    assert "no JSON object" in first.state.sprint.retro.error
    second = after(first.state, answered(2, answer="no")).state.sprint
    assert (second.phase, "no JSON object" in second.retro.problem) == ("ended", True)


def test_without_budget_the_retro_is_cancelled_and_the_sprint_ends_in_the_same_tick() -> None:
    decision = after(after(settled()).state, Halt(reason="the budget is used up"))
    assert decision.actions == (CancelWork(item=ITEM, reason="the budget is used up"),)
    sprint = decision.state.sprint
    assert (sprint.phase, sprint.availability.pause_reason) == ("ended", "")
    assert sprint.retro.problem == "the budget is used up"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"availability__pause_reason": "no key"}, "no key"),
        (
            {
                "settings__framework": "stub",
                "availability__providers": {"stub": Unavailable(until=1e9, what="quota")},
            },
            "stub: quota until 2001-09-09 01:46 UTC",
        ),
    ],
)
def test_a_model_that_may_not_start_is_not_asked(fields: dict[str, Any], reason: str) -> None:
    decision = after(settled(**fields))
    sprint = decision.state.sprint
    assert (decision.actions, sprint.phase, sprint.retro.problem) == ((), "ended", reason)


def test_a_task_that_moves_again_cancels_the_retro_until_the_next_end() -> None:
    state = after(settled()).state
    moved = msgspec.structs.replace(state.tasks["a"], step=Step.WAITING)
    decision = after(msgspec.structs.replace(state, tasks={"a": moved}))
    assert CancelWork(item=ITEM, reason="the sprint goes on") in decision.actions
    sprint = decision.state.sprint
    assert (sprint.phase, sprint.ended_at, sprint.retro.asked) == ("running", None, False)
    again = after(State(sprint=sprint, tasks=settled().tasks))
    (start,) = again.actions
    assert isinstance(start, StartWork)
    assert start.work.item == "shop-1/retro/2-retro"
