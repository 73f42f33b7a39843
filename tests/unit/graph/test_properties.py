"""Promises about stages, and the examples that must keep them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from caloron.graph.effects import NETWORK
from caloron.graph.examples import try_examples
from caloron.graph.properties import judge
from caloron.graph.spec import Example, StageSpec
from caloron.graph.specfile import spec_json, spec_of
from caloron.graph.types import NUMBER
from tests.support.bench import Bench

_SUBSET = {"kind": "subset_of", "subject_field": "output", "super_field": "input"}
_EQUAL = {"kind": "equals", "right_field": "output"}
_KIND = {"kind": "field_type_in", "field": "output"}


@pytest.mark.parametrize(
    ("promise", "input", "output", "state"),
    [
        ({"kind": "set_member", "field": "output", "set": [1, "a"]}, 0, "a", "holds"),
        ({"kind": "set_member", "field": "output", "set": [1]}, 0, 1.0, "fails"),
        ({"kind": "range", "field": "output.n", "min": 0, "max": 5}, 0, {"n": 5}, "holds"),
        ({"kind": "range", "field": "output.n", "min": 0}, 0, {"n": -1}, "fails"),
        ({"kind": "range", "field": "output.n"}, 0, {"n": True}, "fails"),
        (
            {"kind": "field_length_eq", "left_field": "input", "right_field": "output"},
            "éé",
            [1, 2],
            "holds",
        ),
        (
            {"kind": "field_length_eq", "left_field": "input", "right_field": "output"},
            3,
            [1],
            "fails",
        ),
        (
            {"kind": "field_length_max", "subject_field": "output", "bound_field": "input"},
            [1, 2],
            [1],
            "holds",
        ),
        (
            {**_SUBSET},
            [1, 2, "x"],
            [2, 1, 1],
            "holds",
        ),
        (
            {**_SUBSET},
            {"a": 1, "b": 2},
            {"a": 2},
            "fails",
        ),
        (
            {**_SUBSET},
            "abc",
            "bc",
            "holds",
        ),
        (
            {**_SUBSET},
            "a",
            [],
            "fails",
        ),
        (
            {**_EQUAL, "left_field": "input.a"},
            {"a": 1},
            1,
            "holds",
        ),
        (
            {**_EQUAL, "left_field": "input.b"},
            {"a": 1},
            1,
            "fails",
        ),
        (
            {**_KIND, "allowed": ["null", "bool"]},
            0,
            True,
            "holds",
        ),
        ({**_KIND, "allowed": ["number"]}, 0, True, "fails"),
        ({**_KIND, "allowed": ["object"]}, 0, {}, "holds"),
        ({"kind": "always_right"}, 0, 0, "unknown"),
        ({"kind": "range"}, 0, 0, "unknown"),
        ("nonsense", 0, 0, "unknown"),
    ],
)
def test_a_promise_holds_fails_or_is_not_understood(promise, input, output, state):
    verdict = judge(promise, input, output)
    assert verdict.state == state
    assert bool(verdict.reason) is (state != "holds")


def _bench() -> tuple[Bench, StageSpec]:
    bench = Bench()
    return bench, bench.add("inc", lambda n: n + 1, input=NUMBER, output=NUMBER)


def _with(bench: Bench, stage: StageSpec, **changes: Any) -> StageSpec:
    changed = msgspec.structs.replace(stage, **changes)
    bench.catalogue.add(changed)
    return changed


def test_examples_are_run_for_real():
    bench, inc = _bench()
    examples = (Example(1, 2.0), Example(2, 3))
    tried = try_examples(_with(bench, inc, examples=examples), bench.catalogue, bench.functions)
    assert (tried.state, tried.examples) == ("passed", 2)
    assert bench.calls == {"inc": 2}


def test_every_example_that_fails_is_told():
    bench, inc = _bench()
    promise = {"kind": "range", "field": "output", "max": 3}
    examples = (Example(1, 5), Example("x", 1), Example(3, 4))
    stage = _with(bench, inc, examples=examples, properties=(promise,))
    tried = try_examples(stage, bench.catalogue, bench.functions)
    assert tried.state == "failed"
    assert [reason.partition(":")[0] for reason in tried.reasons] == [
        "example 1",
        "example 2",
        "example 1",
        "example 3",
    ]
    assert "answered 2" in tried.reasons[0]
    assert "$.root: expected Number, found a text" in tried.reasons[1]


def test_what_cannot_be_tried_is_skipped_with_the_reason():
    bench, inc = _bench()
    assert try_examples(inc, bench.catalogue, bench.functions).reasons == ("it has no examples",)
    call = bench.add("call", lambda value: value, NETWORK)
    call = _with(bench, call, examples=(Example(1, 1),))
    tried = try_examples(call, bench.catalogue, bench.functions)
    assert (tried.state, tried.reasons) == ("skipped", ("it declares the effect network",))
    assert bench.calls == {}


def test_properties_survive_the_full_form():
    _, inc = _bench()
    promise = {"kind": "range", "field": "output", "max": 3}
    stage = msgspec.structs.replace(inc, properties=(promise,), description="d")
    assert spec_of(spec_json(stage)).properties == (promise,)
