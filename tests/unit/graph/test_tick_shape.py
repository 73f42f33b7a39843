"""A graph of the shape of a sprint's tick: nested Lets that carry the outer fields inward."""

from __future__ import annotations

from typing import Any

import pytest

from caloron.graph.errors import Refused
from caloron.graph.prepare import prepare
from caloron.graph.stage import FALLIBLE, NETWORK
from caloron.graph.types import ANY, NUMBER, TEXT, ListOf, MapOf, record, show
from tests.support.bench import Bench, sequence, stage
from tests.support.noether import wrapped


def _let(name: str, binding: Any, body: Any) -> Any:
    return {"op": "Let", "bindings": {name: binding}, "body": body}


TICK = _let(
    "poll",
    stage("poll"),
    _let(
        "eval",
        sequence(stage("poll_to_eval"), stage("evaluate")),
        _let("health", stage("health"), stage("build")),
    ),
)
GIVEN = {"repo": "r", "since": "s", "state": {"t": 1}, "limit": 20, "agents": {}}


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    polled = record(events=ListOf(ANY), polled_at=TEXT)
    bench.add(
        "poll",
        lambda given: {"events": [given["repo"]], "polled_at": "now"},
        NETWORK,
        FALLIBLE,
        input=record(repo=TEXT, since=TEXT),
        output=polled,
    )
    bench.add(
        "poll_to_eval",
        lambda given: {"state": given["state"], "events": given["poll"]["events"]},
        input=record(poll=polled, state=ANY, limit=NUMBER),
        output=record(state=ANY, events=ListOf(ANY)),
    )
    evaluated = record(state=ANY, actions=ListOf(ANY))
    bench.add(
        "evaluate",
        lambda given: {"state": given["state"], "actions": given["events"]},
        input=record(state=ANY, events=ListOf(ANY)),
        output=evaluated,
    )
    healthy = record(results=ListOf(ANY))
    bench.add(
        "health",
        lambda given: {"results": sorted(given["agents"])},
        input=record(agents=MapOf(TEXT, ANY), limit=NUMBER),
        output=healthy,
    )
    bench.add(
        "build",
        lambda given: [given["eval"]["actions"], given["health"]["results"], given["poll"]],
        input=record(eval=evaluated, health=healthy, poll=polled),
        output=ListOf(ANY),
    )
    return bench


@pytest.mark.parametrize("strict", [True, False])
def test_it_fits_together_and_asks_for_what_its_stages_need(bench, strict):
    checked = prepare(wrapped(TICK), bench.catalogue, strict=strict).checked
    asked = "Record { agents: Map<Text, Any>, limit: Number, repo: Text, since: Text, state: Any }"
    assert show(checked.input) == asked
    assert show(checked.output) == "List<Any>"


def test_it_runs_and_traces_every_stage_once(bench):
    outcome = bench.run(TICK, GIVEN)
    assert outcome.output == [["r"], [], {"events": ["r"], "polled_at": "now"}]
    ids = {stage.id: stage.name for stage in bench.catalogue}
    names = [ids[entry.stage_id] for entry in outcome.trace.stages]
    assert names == ["poll", "poll_to_eval", "evaluate", "health", "build"]


def test_strict_names_the_field_that_is_missing_or_wrong_in_the_input(bench):
    lacking = {name: value for name, value in GIVEN.items() if name != "agents"}
    with pytest.raises(Refused) as refused:
        bench.run(TICK, lacking)
    (finding,) = refused.value.errors
    assert finding.path == "$.root.body.body.bindings.health"
    assert finding.expected == "Record { agents: Map<Text, Any>, limit: Number }"
    assert finding.reason.endswith("the field `agents` (Map<Text, Any>) is missing")
    with pytest.raises(Refused, match=r"expected Text at \$\.repo, found a number"):
        bench.run(TICK, GIVEN | {"repo": 7})


def test_a_stage_that_is_taken_out_is_missed_where_its_answer_was_needed(bench):
    without = _let("poll", stage("poll"), _let("health", stage("health"), stage("build")))
    assert "eval: Record" in show(prepare(wrapped(without), bench.catalogue).checked.input)
    with pytest.raises(Refused, match="the field `eval`"):
        bench.run(without, GIVEN)
