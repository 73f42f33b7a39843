"""The algebra of graphs: equivalent graphs have one id and the same result."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from caloron.graph.nodes import canonicalise, composition_id, node_json
from caloron.graph.parser import parse_graph
from tests.support.graphs import ANY_NODE
from tests.support.noether import wrapped

Node = dict[str, Any]


def _id(root: Node) -> str:
    return composition_id(parse_graph(wrapped(root)))


def _sequence(*stages: Node) -> Node:
    return {"op": "Sequential", "stages": list(stages)}


def _retry(stage: Node, attempts: int, delay: int | None) -> Node:
    return {"op": "Retry", "stage": stage, "max_attempts": attempts, "delay_ms": delay}


@given(ANY_NODE, ANY_NODE, ANY_NODE)
def test_l1_sequences_are_associative(a, b, c):
    assert _id(_sequence(_sequence(a, b), c)) == _id(_sequence(a, _sequence(b, c)))


@given(ANY_NODE)
def test_l2_an_empty_sequence_before_or_after_adds_nothing(a):
    assert _id(_sequence(_sequence(), a)) == _id(a) == _id(_sequence(a, _sequence()))


@given(ANY_NODE, ANY_NODE)
def test_l3_the_order_of_a_sequence_matters(a, b):
    if _steps(a) + _steps(b) != _steps(b) + _steps(a):
        assert _id(_sequence(a, b)) != _id(_sequence(b, a))


def _steps(node: Node) -> list[Any]:
    """Return the steps of a sequence of this one node."""
    root = node_json(canonicalise(parse_graph(wrapped(_sequence(node))).root))
    return list(root["stages"]) if root["op"] == "Sequential" else [root]


@given(ANY_NODE)
def test_l4_a_sequence_of_one_node_is_that_node(a):
    assert _id(_sequence(a)) == _id(a)


@given(st.lists(ANY_NODE, min_size=1, max_size=4), st.integers(1, 6))
def test_l5_nesting_of_any_depth_is_flat(stages, depth):
    nested = _sequence(*stages)
    for _ in range(depth):
        nested = _sequence(nested)
    assert _id(nested) == _id(_sequence(*stages))


@given(st.dictionaries(st.text(max_size=3), ANY_NODE, min_size=1, max_size=4), st.randoms())
def test_l6_and_l7_the_order_of_keys_does_not_matter(named, random):
    keys = list(named)
    random.shuffle(keys)
    shuffled = {key: named[key] for key in keys}
    for op, field in (("Parallel", "branches"), ("Let", "bindings")):
        body = {"body": {"op": "Const", "value": 1}} if op == "Let" else {}
        assert _id({"op": op, field: named, **body}) == _id({"op": op, field: shuffled, **body})


@given(ANY_NODE, ANY_NODE)
def test_l8_the_order_of_targets_and_sources_matters(a, b):
    if _id(a) == _id(b):
        return
    x = {"op": "Const", "value": "x"}
    fanouts = [{"op": "Fanout", "source": x, "targets": t} for t in ([a, b], [b, a])]
    merges = [{"op": "Merge", "sources": s, "target": x} for s in ([a, b], [b, a])]
    assert _id(fanouts[0]) != _id(fanouts[1])
    assert _id(merges[0]) != _id(merges[1])


@given(ANY_NODE, st.integers(0, 1), st.none() | st.integers(0, 9))
def test_l9_one_attempt_is_no_retry(a, attempts, delay):
    assert _id(_retry(a, attempts, delay)) == _id(a)


@given(ANY_NODE, st.integers(2, 9), st.integers(2, 9), st.none() | st.integers(0, 9))
def test_l10_retries_with_one_delay_multiply(a, n, m, delay):
    assert _id(_retry(_retry(a, n, delay), m, delay)) == _id(_retry(a, n * m, delay))
    assert _id(_retry(_retry(a, n, 3), m, 4)) != _id(_retry(a, n * m, 4))


@given(ANY_NODE)
def test_l11_a_let_without_bindings_is_its_body(a):
    assert _id({"op": "Let", "bindings": {}, "body": a}) == _id(a)


@given(ANY_NODE)
def test_l12_the_normal_form_is_its_own_normal_form(a):
    once = canonicalise(parse_graph(wrapped(a)).root)
    assert canonicalise(once) == once


@given(ANY_NODE, st.text(), st.text())
def test_l13_the_id_is_that_of_the_root_alone(a, description, remark):
    noted = {
        "description": description,
        "version": "9",
        "_note": remark,
        "root": _sequence(a) | {"_note": remark},
    }
    assert composition_id(parse_graph(json.dumps(noted))) == _id(a)


@given(ANY_NODE)
def test_a_graph_written_out_reads_back_as_itself(a):
    graph = parse_graph(wrapped(a))
    assert parse_graph(wrapped(node_json(graph.root))) == graph
