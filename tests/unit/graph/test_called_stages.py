"""Stages that call stages: each inner call is one of the engine's own calls."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from caloron.graph.errors import ExecutionError, Refused, StageFailed, StageTimedOut
from caloron.graph.prepare import Permissions, prepare
from caloron.graph.runtime.run import RunLimits
from caloron.graph.stage import FALLIBLE, NETWORK, Effect, Lifecycle
from caloron.graph.storage.cache import MemoryCache
from caloron.graph.storage.journal import SqliteJournal
from caloron.graph.types import ANY, NUMBER, TEXT, ListOf, record
from tests.support.bench import Bench, const, retry, sequence, stage
from tests.support.noether import wrapped


class _Crash(BaseException):
    """Ends a run as a kill does: no handler of the engine catches it."""


def _each(inputs: Any, call: Any) -> Any:
    return [call.stage(inputs["stage_id"], item) for item in inputs["items"]]


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.add("each", _each, input=record(items=ListOf(ANY), stage_id=TEXT))
    bench.add("double", lambda n: n * 2, input=NUMBER, output=NUMBER)
    bench.add("net", lambda value: value, NETWORK)
    bench.add("where", lambda _value, call: [call.path, call.key], NETWORK)
    return bench


def _each_of(name: str) -> dict[str, Any]:
    return stage("each", config={"stage_id": name})


def test_an_inner_call_must_have_its_declared_types(bench):
    bench.add("liar", lambda _n: {"n": "not a number"}, output=record(n=NUMBER))
    with pytest.raises(StageFailed, match=r"\$\.root\[0\]: the answer is not what .* declares"):
        bench.run(_each_of("liar"), {"items": [1]})
    with pytest.raises(StageFailed, match=r"\$\.root\[1\]: the input is not what"):
        bench.run(_each_of("double"), {"items": [1, "two"]})


def test_each_inner_call_is_traced_under_its_own_path(bench):
    trace = bench.run(sequence(_each_of("double"), stage("net")), {"items": [1, 2]}).trace
    assert [call.path for call in trace.stages] == [
        "$.root.stages[0][0]",
        "$.root.stages[0][1]",
        "$.root.stages[0]",
        "$.root.stages[1]",
    ]


def test_no_two_inner_calls_share_a_key(bench):
    answers = bench.run(retry(_each_of("where"), 2), {"items": [1, 2]}).output
    assert answers == [
        ["$.root.stage[0]", "$.root.stage#1[0]"],
        ["$.root.stage[1]", "$.root.stage#1[1]"],
    ]


def test_inner_calls_that_ended_are_not_made_again_after_a_crash(bench, tmp_path):
    journal, left = SqliteJournal(tmp_path), [2]

    def ask(value: Any) -> Any:
        if left[0] == 0:
            raise _Crash
        left[0] -= 1
        return f"answer to {value}"

    bench.add("ask", ask, NETWORK)
    options: dict[str, Any] = {"journal": journal, "run_id": "r"}
    with pytest.raises(_Crash):
        bench.run(_each_of("ask"), {"items": [1, 2, 3]}, **options)
    left[0] = 1
    outcome = bench.run(_each_of("ask"), {"items": [1, 2, 3]}, **options)
    assert outcome.output == ["answer to 1", "answer to 2", "answer to 3"]
    # The third call ran twice, because the crash interrupted it.
    assert bench.calls["ask"] == 4


def test_a_journaled_inner_answer_makes_the_outer_call_impure(bench, tmp_path):
    journal, cache, left = SqliteJournal(tmp_path), MemoryCache(), [1]

    def dice(value: Any) -> Any:
        if left[0] == 0:
            raise _Crash
        left[0] -= 1
        return left[0]

    bench.add("dice", dice, NETWORK)
    graph, inputs = _each_of("dice"), {"items": [1, 2]}
    with pytest.raises(_Crash):
        bench.run(graph, inputs, journal=journal, run_id="r", cache=cache)
    left[0] = 5
    bench.run(graph, inputs, journal=journal, run_id="r", cache=cache)
    calls = bench.calls["dice"]
    bench.run(graph, inputs, cache=cache)
    assert bench.calls["dice"] == calls + 2


def test_an_impure_call_two_levels_down_is_not_remembered(bench):
    cache = MemoryCache()
    inner = {"stage_id": "net", "items": [1]}
    for _ in range(2):
        bench.run(_each_of("each"), {"items": [inner]}, cache=cache)
    assert bench.calls["net"] == 2


def test_the_time_limit_of_a_stage_limits_its_inner_calls(bench):
    bench.add("wait", lambda value, call: call.sleep(30), NETWORK)
    with pytest.raises(StageTimedOut):
        bench.run(_each_of("wait"), {"items": [1]}, limits=RunLimits(stage_seconds=0.2))


def test_a_stage_after_its_time_limit_makes_no_further_call(bench):
    seen: list[str] = []

    def late(inputs: Any, call: Any) -> Any:
        while call.seconds_left() > 0:
            pass
        try:
            return call.stage("net", 1)
        except ExecutionError as error:
            seen.append(type(error).__name__)
            raise

    bench.add("late", late)
    with pytest.raises(StageTimedOut):
        bench.run(stage("late"), 1, limits=RunLimits(stage_seconds=0.1))
    while not seen:
        pass
    assert "net" not in bench.calls


def test_inner_calls_cost_what_their_stage_declares(bench):
    bench.add("paid", lambda value: value, Effect("Cost", 3))
    outcome = bench.run(
        _each_of("paid"), {"items": [1, 2]}, permissions=Permissions(budget_cents=10)
    )
    assert outcome.spent_cents == 6


@pytest.mark.parametrize(
    "graph",
    [
        _each_of("net"),
        sequence(const({"stage_id": "net", "items": [1]}), stage("each")),
        sequence(const("net"), stage("each", config={"items": [1]})),
        {"op": "Let", "bindings": {"stage_id": const("net")}, "body": stage("each")},
    ],
    ids=["config", "constant", "bare value", "binding"],
)
def test_the_effects_of_a_constant_stage_count_before_the_run(bench, graph):
    prepared = prepare(wrapped(graph), bench.catalogue)
    assert [effect.kind for effect in prepared.effects] == ["Network", "Pure"]
    with pytest.raises(Refused, match="the effect network is not allowed"):
        prepare(wrapped(graph), bench.catalogue, permissions=Permissions(effects="pure"))


def test_a_stage_name_in_data_resolves_as_in_a_graph(bench):
    bench.add("double", lambda n: n * 2, FALLIBLE, input=NUMBER, output=NUMBER)
    newest = bench.catalogue.by_name("double")
    bench.catalogue.add(newest[0])
    other = next(stage for stage in newest if stage.id != newest[0].id)
    deprecated = Lifecycle("Deprecated", newest[0].id)
    bench.catalogue.add(msgspec.structs.replace(other, lifecycle=deprecated))
    assert bench.run(stage("double"), 2).output == 4
    assert bench.run(_each_of("double"), {"items": [2]}).output == [4]
    assert bench.run(_each_of(newest[0].id[:12]), {"items": [2]}).output == [4]


@pytest.mark.parametrize(
    ("permissions", "reason"),
    [
        (Permissions(capabilities="fs-read"), "the capability network is not granted"),
        (Permissions(effects="pure"), "the effect network is not allowed"),
    ],
)
def test_a_stage_named_by_data_has_no_more_permissions_than_one_in_the_graph(
    bench, permissions, reason
):
    net = bench.catalogue.by_name("net")[0]
    bench.catalogue.add(msgspec.structs.replace(net, capabilities=frozenset({"Network"})))
    with pytest.raises(StageFailed, match=f"net may not run here: {reason}"):
        bench.run(stage("each"), {"stage_id": "net", "items": [1]}, permissions=permissions)
