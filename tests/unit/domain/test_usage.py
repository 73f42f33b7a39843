"""The allowance of a run and the cost of all runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloron.domain.model.facts import RunInterrupted
from caloron.domain.model.usage import Spent, Usage, allowance, guess_usd
from caloron.engine.runs.budget import BudgetGuard
from caloron.testing import SprintDriver

_usd = st.floats(0, 1000)


@given(_usd.filter(bool), st.lists(st.tuples(st.floats(0.01, 50), st.floats(0, 1))))
def test_runs_that_keep_to_their_allowance_never_spend_more_than_the_budget(
    budget: float, runs: list[tuple[float, float]]
) -> None:
    """Each run reserves an allowance and spends a part of it while earlier runs are active."""
    spent = 0.0
    at_work: list[float] = []
    for cap, part in runs:
        given_usd = allowance(budget, spent, sum(at_work), cap)
        assert 0 <= given_usd <= cap
        at_work.append(given_usd)
        if len(at_work) > 3:
            spent += at_work.pop(0) * part
    assert spent + sum(at_work) <= budget * (1 + 1e-9)


@pytest.mark.parametrize(
    ("budget", "spent", "reserved", "cap", "expected"),
    [
        (20, 0, 0, 2, 2),
        (20, 19, 0, 2, 1),
        (20, 18, 2, 2, 0),
        (20, 19.99, 0, 2, 0),
        (0.01, 0, 0, 2, 0.01),
        (0.01, 0.01, 0, 2, 0),
    ],
)
def test_the_next_run_gets_the_remaining_budget_unless_it_is_too_small(
    budget: float, spent: float, reserved: float, cap: float, expected: float
) -> None:
    assert allowance(budget, spent, reserved, cap) == pytest.approx(expected)


def test_the_cost_of_a_run_without_a_report_is_estimated_within_its_cap() -> None:
    assert guess_usd(1_000_000, 0, cap=100) == 15
    assert guess_usd(1_000_000, 1_000_000, cap=2) == 2
    assert guess_usd(0, 0, cap=2) == 0


def test_every_run_costs_once_even_if_its_end_is_reported_twice(made: SprintDriver) -> None:
    usage = Usage(usd=0.5, tokens_in=10, tokens_out=5)
    fact = made.finish("a", usage=usage)
    made.tick(fact)
    made.tick(fact, fact)
    assert made.state.sprint.usage.spent == Spent(usd=0.5, tokens_in=10, tokens_out=5, runs=1)
    assert made.task("a").usage.spent == made.state.sprint.usage.spent


def test_an_interrupted_run_costs_and_keeps_its_conversation(made: SprintDriver) -> None:
    item = made.item("a")
    cut = RunInterrupted(
        item=item, task="a", token=1, usage=Usage(usd=0.2, estimated=True), session="s-1"
    )
    made.tick(cut, cut)
    assert made.task("a").usage.spent.usd == 0.2
    assert made.state.sprint.usage.spent.estimated_usd == 0.2
    assert made.task("a").attempts.session == "s-1"
    assert made.task("a").attempts.failures == 0


def test_the_budget_reserves_the_allowances_of_running_agents() -> None:
    budget = BudgetGuard(3.0, 0.0, 2.0)
    budget.is_metered = True
    assert budget.allowance() == 2
    budget.reserve(("a", 1), 2)
    assert budget.allowance() == 1
    budget.reserve(("b", 1), 1)
    assert budget.allowance() == 0
    assert not budget.is_exhausted, "a running agent may spend less than its allowance"
    budget.settle(("a", 1), 0.5)
    assert budget.allowance() == 1.5
    budget.settle(("b", 1), 1)
    budget.spent = 3.0
    assert budget.is_exhausted
    assert "$3.00" in str(budget)


def test_the_budget_is_metered_after_the_first_reported_cost() -> None:
    budget = BudgetGuard(1.0, 0.0, 2.0)
    assert budget.allowance() is None
    assert not budget.is_exhausted
    budget.settle(("a", 1), 0.0)
    assert budget.allowance() is None
    budget.settle(("b", 1), 1.5)
    assert budget.is_exhausted
