"""The algebra of graphs: equivalent graphs have one id and the same result."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from caloron.graph.nodes import canonicalise, composition_id, node_json
from caloron.graph.parser import parse_graph
from tests.support.bench import retry, sequence
from tests.support.graphs import ANY_NODE
from tests.support.noether import wrapped

Node = dict[str, Any]
_DELAYS = st.none() | st.integers(0, 9)


def _id(root: Node) -> str:
    return composition_id(parse_graph(wrapped(root)))


@given(ANY_NODE, ANY_NODE, ANY_NODE)
def test_nesting_of_sequences_does_not_matter(a, b, c):
    assert _id(sequence(sequence(a, b), c)) == _id(sequence(a, sequence(b, sequence(c))))
    assert _id(sequence(sequence(), a)) == _id(sequence(a)) == _id(a)


@given(ANY_NODE, ANY_NODE)
def test_the_order_of_a_sequence_of_targets_and_of_sources_matters(a, b):
    if _steps(a) + _steps(b) != _steps(b) + _steps(a):
        assert _id(sequence(a, b)) != _id(sequence(b, a))
    if _id(a) != _id(b):
        x = {"op": "Const", "value": "x"}
        fanouts = [{"op": "Fanout", "source": x, "targets": t} for t in ([a, b], [b, a])]
        merges = [{"op": "Merge", "sources": s, "target": x} for s in ([a, b], [b, a])]
        assert _id(fanouts[0]) != _id(fanouts[1])
        assert _id(merges[0]) != _id(merges[1])


def _steps(node: Node) -> list[Any]:
    """Return the steps of a sequence of this one node."""
    root = node_json(canonicalise(parse_graph(wrapped(sequence(node))).root))
    return list(root["stages"]) if root["op"] == "Sequential" else [root]


@given(st.dictionaries(st.text(max_size=3), ANY_NODE, min_size=1, max_size=4), st.randoms())
def test_the_order_of_keys_does_not_matter(named, random):
    keys = list(named)
    random.shuffle(keys)
    shuffled = {key: named[key] for key in keys}
    for op, field in (("Parallel", "branches"), ("Let", "bindings")):
        body = {"body": {"op": "Const", "value": 1}} if op == "Let" else {}
        assert _id({"op": op, field: named, **body}) == _id({"op": op, field: shuffled, **body})


@given(ANY_NODE, st.integers(0, 1), st.integers(2, 9), st.integers(2, 9), _DELAYS)
def test_retries_with_one_delay_multiply_and_one_attempt_is_no_retry(a, once, n, m, delay):
    assert _id(retry(a, once, delay)) == _id(a)
    assert _id(retry(retry(a, n, delay), m, delay)) == _id(retry(a, n * m, delay))
    assert _id(retry(retry(a, n, 3), m, 4)) != _id(retry(a, n * m, 4))


@given(ANY_NODE, st.text(), st.text())
def test_a_let_without_bindings_descriptions_and_remarks_do_not_count(a, description, remark):
    assert _id({"op": "Let", "bindings": {}, "body": a}) == _id(a)
    noted = {
        "description": description,
        "version": "9",
        "_note": remark,
        "root": sequence(a) | {"_note": remark},
    }
    assert composition_id(parse_graph(json.dumps(noted))) == _id(a)


@given(ANY_NODE)
def test_the_normal_form_is_its_own_and_a_graph_written_out_reads_back_as_itself(a):
    graph = parse_graph(wrapped(a))
    once = canonicalise(graph.root)
    assert canonicalise(once) == once
    assert parse_graph(wrapped(node_json(graph.root))) == graph
