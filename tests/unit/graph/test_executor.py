"""Execution of a graph: each operation, its failures, its limits."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import assume, given, settings

from caloron.graph.catalogue import resolve
from caloron.graph.checker import check
from caloron.graph.errors import (
    BudgetExceeded,
    ExecutionError,
    ParseError,
    Refused,
    RunTimedOut,
    StageFailed,
    StageTimedOut,
)
from caloron.graph.json_text import MAX_NESTING
from caloron.graph.nodes import canonicalise, node_json
from caloron.graph.parser import parse_graph
from caloron.graph.prepare import Permissions, prepare
from caloron.graph.runtime.run import RunLimits, RunResult, run
from caloron.graph.stage import FALLIBLE, Effect
from caloron.graph.types import (
    ANY,
    NUMBER,
    TEXT,
    ListOf,
    Range,
    Refined,
    optional,
    record,
)
from tests.support.bench import Bench, const, parallel, retry, sequence, stage
from tests.support.graphs import CONSTANTS, nodes, stages
from tests.support.noether import wrapped


def _boom(value: Any) -> Any:
    raise ValueError(f"boom {value}")


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.add("inc", lambda n: n + 1, input=NUMBER, output=NUMBER)
    bench.add("echo", lambda value: value)
    bench.add("boom", _boom, FALLIBLE)
    bench.add("is_five", lambda value: value == 5)
    return bench


def test_each_operation_has_its_documented_result(bench):
    inc, echo = stage("inc"), stage("echo")
    assert bench.run(sequence(inc, inc), 1).output == 3
    assert bench.run(parallel(a=echo, b=echo), {"a": 1, "c": 2}).output == {
        "a": 1,
        "b": {"a": 1, "c": 2},
    }
    branch = {"op": "Branch", "predicate": stage("is_five"), "if_true": inc, "if_false": echo}
    assert [bench.run(branch, n).output for n in (5, 6)] == [6, 6]
    assert bench.run({"op": "Fanout", "source": inc, "targets": [inc, echo]}, 1).output == [3, 2]
    merge = {"op": "Merge", "sources": [echo, echo], "target": echo}
    assert bench.run(merge, {"source_1": 7}).output == {"source_0": None, "source_1": 7}
    assert bench.run(merge, 3).output == {"source_0": 3, "source_1": 3}
    let = {"op": "Let", "bindings": {"x": echo}, "body": echo}
    assert bench.run(let, {"x": 0, "y": 1}).output == {"x": {"x": 0, "y": 1}, "y": 1}
    assert bench.run(let, [1]).output == {"x": [1]}
    assert bench.run(const({"a": 1}), 0).output == {"a": 1}


def test_a_bare_value_beside_config_fills_the_remaining_field(bench):
    bench.add("cut", lambda inputs: inputs, input=record(text=ANY, sep=TEXT))
    cut = stage("cut", config={"sep": ","})
    assert bench.run(cut, "a,b").output == {"text": "a,b", "sep": ","}
    assert bench.run(cut, {"text": "t", "sep": ";"}).output == {"text": "t", "sep": ","}


def test_a_stage_cannot_change_the_input_of_others(bench):
    def spoil(inputs: Any) -> Any:
        inputs["list"].append("spoilt")
        return inputs

    bench.add("spoil", spoil)
    root = parallel(a=stage("spoil"), b=stage("spoil"), c=stage("echo"))
    outcome = bench.run(root, {"list": []}).output
    assert outcome["c"] == {"list": []}
    assert outcome["a"] == outcome["b"] == {"list": ["spoilt"]}


def test_branches_and_bindings_run_at_the_same_time(bench):
    meeting = threading.Barrier(3, timeout=20)
    bench.add("meet", lambda inputs: meeting.wait() >= 0)
    meet = stage("meet")
    assert bench.run(parallel(a=meet, b=meet, c=meet)).output == {"a": True, "b": True, "c": True}
    bindings = {"a": meet, "b": meet, "c": meet}
    let = {"op": "Let", "bindings": bindings, "body": stage("echo")}
    assert bench.run(let).output == {"a": True, "b": True, "c": True}


def test_a_failed_branch_stops_its_siblings(bench):
    started = threading.Event()

    def patient(_inputs: Any, call: Any) -> Any:
        started.set()
        call.sleep(60)

    bench.add("patient", patient)
    bench.add("boom_then", lambda inputs: started.wait(20) and _boom(inputs))
    root = parallel(a=sequence(stage("patient"), stage("echo")), b=stage("boom_then"))
    with pytest.raises(StageFailed, match=r"\$\.root\.branches\.b: boom") as failed:
        bench.run(root, 1)
    assert failed.value.trace is not None
    assert failed.value.trace.status == "Failed"
    assert bench.calls.get("echo") is None


def test_a_failed_branch_is_in_the_trace(bench):
    bench.add("flaky", _failing(1), FALLIBLE)
    root = retry(parallel(a=stage("echo"), b=stage("flaky"), c=stage("echo")), 2)
    inputs = {"a": 1, "b": 2, "c": 3}
    outcome = bench.run(root, inputs, limits=RunLimits(threads=0))
    assert outcome.output == inputs
    assert outcome.trace.status == "Ok"
    names = [entry.path[-1] for entry in outcome.trace.stages if entry.source == "run"]
    assert names == ["a", "b", "a", "b", "c"]


def _failing(times: int) -> Any:
    left = [times]

    def flaky(value: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise ValueError("not yet")
        return value

    return flaky


def test_retry_waits_its_delay(bench):
    bench.add("flaky", _failing(2), FALLIBLE)
    slept: list[float] = []
    outcome = bench.run(retry(stage("flaky"), 5, 250), 7, sleep=slept.append)
    assert outcome.output == 7
    assert slept == [0.25, 0.25]
    assert outcome.trace.status == "Ok"
    assert [entry.failure for entry in outcome.trace.stages] == ["not yet", "not yet", ""]
    assert [entry.step_index for entry in outcome.trace.stages] == [0, 1, 2]
    with pytest.raises(StageFailed, match=r"\$\.root\.stage: boom 1"):
        bench.run(retry(stage("boom"), 3, 10), 1, sleep=slept.append)
    assert bench.calls["boom"] == 3
    assert slept == [0.25, 0.25, 0.01, 0.01]


def test_a_stage_that_takes_too_long_times_out(bench):
    released = threading.Event()
    bench.add("slow", lambda inputs: released.wait(60))
    try:
        with pytest.raises(StageTimedOut, match=r"\$\.root: not done after 0\.?\d* s"):
            bench.run(stage("slow"), limits=RunLimits(stage_seconds=0.05))
    finally:
        released.set()


def test_a_run_that_takes_too_long_ends_at_the_next_node(bench):
    clock = iter(range(100))
    root = sequence(*[stage("inc")] * 50)
    with pytest.raises(RunTimedOut, match="the time of the run is over"):
        bench.run(root, 1, limits=RunLimits(run_seconds=20), clock=lambda: float(next(clock)))
    assert 0 < bench.calls["inc"] < 20


def test_the_time_limit_of_a_run_is_no_failure_of_its_stage(bench):
    released = threading.Event()
    bench.add("slow", lambda inputs: released.wait(60))
    limits = RunLimits(run_seconds=0.05, stage_seconds=30)
    try:
        for root in (stage("slow"), parallel(a=stage("slow"), b=stage("slow"))):
            with pytest.raises(RunTimedOut, match="the time of the run is over"):
                bench.run(root, {"a": 1, "b": 2}, limits=limits)
    finally:
        released.set()


def test_each_call_is_paid_before_it_is_made(bench):
    cost = Effect("Cost", 3)
    bench.add("paid", lambda value: value, cost, FALLIBLE)
    bench.add("paid_boom", _boom, cost, FALLIBLE)
    root = sequence(stage("paid"), stage("paid"))
    for allowed in (None, Permissions(budget_cents=6)):
        assert bench.run(root, 1, permissions=allowed).spent_cents == 6
    bench.calls.clear()
    with pytest.raises(BudgetExceeded) as refused:
        bench.run(retry(stage("paid_boom"), 5), 1, permissions=Permissions(budget_cents=8))
    assert bench.calls == {"paid_boom": 2}
    assert (refused.value.exit_code, refused.value.kind) == (2, "budget")


def test_strict_checks_values_against_their_types_at_any_depth(bench):
    percent = Refined(NUMBER, Range(0.0, 100.0))
    bench.add("rate", lambda value: {"rates": value}, output=record(rates=ListOf(percent)))
    assert bench.run(stage("rate"), [1, 100]).output == {"rates": [1, 100]}
    with pytest.raises(StageFailed, match=r"expected Range\(0\.\.=100\) at \$\.rates\[1\], found"):
        bench.run(stage("rate"), [1, 101])
    with pytest.raises(StageFailed, match="the answer is not what the stage declares"):
        bench.run(stage("rate"), "no list")


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), 2**70])
def test_an_input_that_is_no_json_or_of_another_type_is_refused(bench, value):
    with pytest.raises(Refused) as refused:
        bench.run(stage("echo"), value)
    assert refused.value.errors[0].path == "$.input"
    bench.add("two", lambda inputs: inputs, input=record(a=NUMBER, b=optional(TEXT)))
    assert bench.run(stage("two"), {"a": 1}).output == {"a": 1}
    with pytest.raises(Refused) as refused:
        bench.run(stage("two"), {"a": "1"})
    assert str(refused.value) == '$.root: expected Number at $.a, found a text ("1")'
    assert refused.value.exit_code == 2


def _answering(answer: Any) -> Any:
    return lambda _inputs: answer


def test_an_answer_that_is_no_json_fails_the_stage(bench):
    circle: list[Any] = []
    circle.append(circle)
    for name, answer in (("set", {1}), ("nan", float("nan")), ("circle", circle), ("big", 2**70)):
        bench.add(name, _answering(answer))
        with pytest.raises(StageFailed, match=r"\$\.root: "):
            bench.run(stage(name))


def test_a_value_over_the_size_limit_fails_the_stage(bench):
    bench.add("twice", lambda value: value * 2)
    root = sequence(*[stage("twice")] * 40)
    with pytest.raises(StageFailed, match="over the limit of 1000"):
        bench.run(root, "x" * 10, limits=RunLimits(value_characters=1000))


def _nest(op: str, inner: Any) -> Any:
    echo = stage("echo")
    return {
        "Sequential": {"op": op, "stages": [inner]},
        "Parallel": {"op": op, "branches": {"x": inner}},
        "Branch": {"op": op, "predicate": const(True), "if_true": inner, "if_false": echo},
        "Fanout": {"op": op, "source": inner, "targets": [echo]},
        "Merge": {"op": op, "sources": [inner], "target": echo},
        "Retry": {"op": op, "stage": inner, "max_attempts": 2, "delay_ms": None},
        "Let": {"op": op, "bindings": {"x": inner}, "body": echo},
    }[op]


@pytest.mark.parametrize(
    "op", ["Sequential", "Parallel", "Branch", "Fanout", "Merge", "Retry", "Let"]
)
def test_a_graph_of_the_largest_depth_runs(bench, op):
    per_level = 1 if op in ("Branch", "Fanout", "Retry") else 2
    # The graph itself is one level, and the innermost node at most two.
    levels = (MAX_NESTING - 3) // per_level
    root = stage("echo")
    for _ in range(levels):
        root = _nest(op, root)
    bench.run(root, {}, limits=RunLimits(threads=0))
    with pytest.raises(ParseError, match="nested more than 127 deep"):
        bench.run(_nest(op, _nest(op, _nest(op, root))), {})


def test_the_caller_may_change_the_output(bench):
    prepared = prepare(wrapped(const({"list": []})), bench.catalogue)
    run(prepared, None, bench.functions).output["list"].append("spoilt")
    assert run(prepared, None, bench.functions).output == {"list": []}


def test_the_error_of_a_run_carries_its_trace(bench):
    with pytest.raises(ExecutionError) as failed:
        bench.run(sequence(stage("inc"), stage("boom"), stage("inc")), 1)
    trace = failed.value.trace
    assert trace is not None
    assert [(entry.path, entry.failure) for entry in trace.stages] == [
        ("$.root.stages[0]", ""),
        ("$.root.stages[1]", "boom 2"),
    ]


def test_an_interrupt_is_not_mistaken_for_a_failed_stage(bench):
    def interrupt(_inputs: Any) -> Any:
        raise KeyboardInterrupt

    bench.add("interrupt", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.run(parallel(a=stage("interrupt"), b=stage("echo")), 1)


_SAFE = stages("echo", "wrap", "is_five") | CONSTANTS


def _safe_bench(root: Any) -> Bench:
    """Return stages that never fail; the tests skip graphs with incompatible types."""
    bench = Bench()
    bench.add("echo", lambda value: value)
    bench.add("wrap", lambda value: [value])
    bench.add("is_five", lambda value: value == 5)
    resolved = resolve(parse_graph(wrapped(root)), bench.catalogue).graph.root
    assume(not check(resolved, bench.catalogue).errors)
    return bench


@settings(deadline=None, max_examples=150)
@given(nodes(_SAFE, most_leaves=12, empty=False))
def test_threads_and_the_normal_form_do_not_change_the_result(root):
    bench = _safe_bench(root)
    alone, concurrent = (
        bench.run(root, {"a": 5}, limits=RunLimits(threads=threads)) for threads in (0, 8)
    )
    normal = node_json(canonicalise(parse_graph(wrapped(root)).root))
    assert alone.output == concurrent.output == bench.run(normal, {"a": 5}).output
    assert _trace(alone) == _trace(concurrent)


def _trace(outcome: RunResult) -> Any:
    return [(o.path, o.step_index, o.input_hash, o.output_hash) for o in outcome.trace.stages]
