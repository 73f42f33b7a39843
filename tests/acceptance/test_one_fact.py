"""One fact in the ledger changes: exactly what depends on it changes with it, and nothing else.

The tests compare all answers of `report`, `metrics` and `show`, and every line of the prompt of the
next planner.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from caloron.domain.model.facts import RunInterrupted
from caloron.domain.model.usage import Usage
from caloron.domain.rules.supervisor import Limits
from caloron.engine.signals import SystemClock
from caloron.engine.tick import tick
from caloron.ledger.learnings import context_for
from caloron.ledger.ledger import Ledger
from caloron.ledger.tick_context import TickContext
from tests.support.home import Home, does, task, writes

ANSWER = """done
---
caloron_feedback:
  task_clarity: 3
  blockers: ["no docs"]
  tools_used: [bash]
  self_assessment: completed
---
"""
Change = Callable[[Home], None]
Changes = dict[str, tuple[Any, Any]]


@pytest.fixture
def single(home: Home) -> Home:
    """A project with one finished sprint of one task."""
    home.set(verify="echo verified")
    home.script(writes("a", output=ANSWER, report={"cost_usd": 0.5}))
    assert home.sprint(task("a")).code == 0
    return home


def more_cost(home: Home) -> None:
    """Report an interrupted run that cost a quarter of a dollar."""
    cut = RunInterrupted(item="demo-1/a/1-implement", task="a", token=99, usage=Usage(usd=0.25))
    ledger = Ledger(home.project() / "ledger.sqlite")
    ledger.append_facts("demo-1", [cut])
    tick(TickContext(ledger=ledger, clock=SystemClock(), limits=Limits()), "demo-1")
    ledger.close()


def add_review_round(home: Home) -> None:
    def reviewed_again(data: dict[str, Any]) -> dict[str, Any]:
        review = data["review"]
        return data | {"review": review | {"reviewed": [*review["reviewed"], "another"]}}

    edit(home, reviewed_again)


def edit(home: Home, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Write into the database itself, past all code of Caloron."""
    with home.ledger() as ledger:
        (data,) = ledger.execute("SELECT data FROM tasks WHERE id = 'a'").fetchone()
        new = json.dumps(change(json.loads(data))).encode()
        ledger.execute("UPDATE tasks SET data = ? WHERE id = 'a'", (new,))


def leaves(data: Any, path: str = "") -> dict[str, Any]:
    """Return every single value of an answer by its path; lists of records by their names."""
    if isinstance(data, dict):
        return {k: v for name in data for k, v in leaves(data[name], f"{path}.{name}").items()}
    if isinstance(data, list) and data and isinstance(data[0], dict):
        return leaves({_name(e, n): e for n, e in enumerate(data)}, path)
    return {path.lstrip("."): data}


def _name(entry: dict[str, Any], position: int) -> str:
    known = ("metric", "agent", "task", "id")
    return next((str(entry[name]) for name in known if entry.get(name)), str(position))


def everything(home: Home) -> dict[str, Any]:
    leaves_by_path: dict[str, Any] = {}
    for command in (("report",), ("metrics",), ("show", "1")):
        answer = home.caloron(*command)
        assert answer.code == 0, answer
        leaves_by_path |= leaves(answer.data, command[0])
    return leaves_by_path | {f"prompt|{line}": True for line in planner_context(home).splitlines()}


def planner_context(home: Home) -> str:
    """Return the context of the next planner; nothing is changed."""
    ledger = Ledger(home.project() / "ledger.sqlite")
    before = ledger.get("learnings")
    context = context_for(ledger, "demo-2")
    with ledger.db.transaction("test") as connection:
        connection.execute("DELETE FROM kv WHERE key = 'learnings'")
    if before:
        ledger.put("learnings", before)
    ledger.close()
    return context


def changed(before: dict[str, Any], after: dict[str, Any]) -> Changes:
    return {
        path: (before.get(path), after.get(path))
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    }


def line_of_sprint(done: int, reviews: str, cost: str) -> str:
    results = f"{done}/1 tasks done, clarity 3.0/10, {reviews} reviews per task, ${cost}"
    return f'prompt|- demo-1: {results} — "make it so"'


AS_IT_WAS = {line_of_sprint(1, "1.00", "0.50"): (True, None)}
COST: Changes = AS_IT_WAS | {
    "report.tasks.a.cost_usd": (0.5, 0.75),
    "report.agents.a.cost_usd": (0.5, 0.75),
    "report.kpis.cost_usd": (0.5, 0.75),
    "report.kpis.avg_cost_per_task": (0.5, 0.75),
    "metrics.cost_usd": (0.5, 0.75),
    "metrics.last_sprint.cost_usd": (0.5, 0.75),
    "metrics.last_sprint.avg_cost_per_task": (0.5, 0.75),
    "report.cost_usd": (0.5, 0.75),
    "show.cost_usd": (0.5, 0.75),
    "show.kpis.cost_usd": (0.5, 0.75),
    "show.kpis.avg_cost_per_task": (0.5, 0.75),
    "show.tasks.a.cost_usd": (0.5, 0.75),
    line_of_sprint(1, "1.00", "0.75"): (None, True),
}
ROUND: Changes = AS_IT_WAS | {
    "report.tasks.a.review_rounds": (1, 2),
    "report.agents.a.review_cycles": (1, 2),
    "report.agents.reviewer-1.review_cycles": (1, 2),
    "report.kpis.avg_review_cycles": (1.0, 2.0),
    "metrics.review_cycles": (1, 2),
    "metrics.last_sprint.avg_review_cycles": (1.0, 2.0),
    "show.kpis.avg_review_cycles": (1.0, 2.0),
    "show.tasks.a.review_rounds": (1, 2),
    line_of_sprint(1, "2.00", "0.50"): (None, True),
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [(more_cost, COST), (add_review_round, ROUND)],
    ids=["cost", "round"],
)
def test_a_fact_changes_exactly_the_values_that_depend_on_it(
    single: Home, change: Change, expected: Changes
) -> None:
    before = everything(single)
    assert changed(before, everything(single)) == {}
    change(single)
    after = everything(single)
    assert changed(before, after) == expected


def test_the_prompt_of_the_next_planner_has_exactly_this_context(single: Home) -> None:
    add_review_round(single)
    context = planner_context(single)
    single.script(does("po", output=json.dumps([task("b")])), writes("b"))
    assert single.sprint().code == 0
    (prompt,) = (single.project() / "runs" / "demo-2" / "po").glob("*/*/prompt.txt")
    assert f"]\n{context}\n[end" in prompt.read_text()
