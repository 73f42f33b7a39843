"""Every refusal of a graph names the JSON path of the error."""

from __future__ import annotations

import pytest

from caloron.graph.errors import ParseError
from caloron.graph.nodes import Const, Retry, Stage
from caloron.graph.parser import parse_graph
from tests.support.noether import wrapped

_S = {"op": "Stage", "id": "s"}


@pytest.mark.parametrize(
    ("root", "path", "message"),
    [
        ({"op": "Spawn"}, "$.root.op", 'unknown op "Spawn"; the ops are Stage'),
        ({"op": "stage", "id": "x"}, "$.root.op", "unknown op"),
        ({"id": "x"}, "$.root", "the field `op` is missing"),
        ([], "$.root", "a node is an object, not an array"),
        ({"op": "Stage"}, "$.root", "the field `id` is missing"),
        ({"op": "Stage", "id": 7}, "$.root.id", "expected a text, found a number"),
        ({"op": "Stage", "id": "x", "config": []}, "$.root.config", "config is an object"),
        ({"op": "Const"}, "$.root", "the field `value` is missing"),
        (
            {"op": "Sequential", "stages": [_S, {"op": "Parallel", "branches": {"a b": {}}}]},
            '$.root.stages[1].branches["a b"]',
            "the field `op` is missing",
        ),
        ({"op": "Parallel", "branches": []}, "$.root.branches", "expected an object of nodes"),
        ({"op": "Fanout", "source": _S, "targets": {}}, "$.root.targets", "an array of nodes"),
        (
            {"op": "RemoteStage", "url": "u", "input": {"kind": "Txt"}, "output": {"kind": "Any"}},
            "$.root.input",
            'unknown kind of type "Txt"',
        ),
        (
            {"op": "RemoteStage", "url": "u", "input": "Text", "output": {"kind": "Any"}},
            "$.root.input",
            "a type is an object",
        ),
        (
            {"op": "Retry", "stage": _S, "max_attempts": True},
            "$.root.max_attempts",
            "expected a whole number",
        ),
        (
            {"op": "Retry", "stage": _S, "max_attempts": 1, "delay_ms": -1},
            "$.root.delay_ms",
            "expected a whole number",
        ),
        (
            {"op": "Retry", "stage": _S, "max_attempts": 2**32},
            "$.root.max_attempts",
            "expected a whole number from 0 to 4294967295",
        ),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_an_invalid_graph_is_refused_with_the_path(root, path, message, strict):
    with pytest.raises(ParseError) as refused:
        parse_graph(wrapped(root), strict=strict)
    assert refused.value.path == path
    assert message in str(refused.value)
    assert refused.value.exit_code == 1


def test_strict_refuses_an_unknown_field_and_noether_ignores_it():
    text = wrapped({"op": "Retry", "stage": _S, "max_attempts": 2, "backoff_ms": 5})
    assert parse_graph(text, strict=False).root == Retry(Stage("s"), 2)
    with pytest.raises(
        ParseError, match=r"\$\.root: unknown field backoff_ms; known here: .*delay"
    ):
        parse_graph(text)


def test_remarks_are_ignored():
    root = _S | {"_note": "why", "$comment": 1}
    assert parse_graph(wrapped(root)).root == Stage("s")


def test_a_repeated_field_is_refused():
    text = '{"description":"","version":"","root":{"op":"Stage","id":"a","id":"b"}}'
    for strict in (True, False):
        with pytest.raises(ParseError, match=r"\$\.root: given more than once: id"):
            parse_graph(text, strict=strict)


def test_strict_refuses_a_repeated_key_in_a_value_and_noether_takes_the_last():
    text = '{"description":"","version":"","root":{"op":"Const","value":{"a":1,"a":2}}}'
    assert parse_graph(text, strict=False).root == Const({"a": 2})
    with pytest.raises(ParseError, match=r"\$\.root\.value: given more than once: a"):
        parse_graph(text)
