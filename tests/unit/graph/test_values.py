"""Checks of values against types, with the path of each mismatch."""

from __future__ import annotations

import pytest

from caloron.graph.checker.subtyping import find_type_error, same
from caloron.graph.types import (
    ANY,
    BOOL,
    BYTES,
    NULL,
    NUMBER,
    TEXT,
    VNODE,
    ListOf,
    LiteralType,
    MapOf,
    NonEmpty,
    OneOf,
    Range,
    RecordWith,
    Refined,
    StreamOf,
    Union,
    Var,
    infer,
    optional,
    record,
    show,
)

_PERCENT = Refined(NUMBER, Range(0.0, 100.0))


@pytest.mark.parametrize(
    ("of", "right", "wrong"),
    [
        (ANY, [None, True, 1, "x", [], {}], []),
        (NULL, [None], [0, "", False]),
        (BOOL, [True, False], [0, 1, None]),
        (NUMBER, [0, 1.5, -3], [True, "1", None]),
        (TEXT, ["", "x"], [1, None]),
        (BYTES, ["aGk="], [1, []]),
        (VNODE, [{}, {"tag": "a"}], ["a", []]),
        (ListOf(TEXT), [[], ["a"]], [["a", 1], "a", {}]),
        (StreamOf(NUMBER), [[1]], [["1"]]),
        (MapOf(TEXT, NUMBER), [{}, {"a": 1}], [{"a": "1"}, []]),
        (MapOf(NUMBER, NUMBER), [], [{"1": 1}]),
        (record(a=TEXT, b=optional(TEXT)), [{"a": "x"}, {"a": "x", "c": 1}], [{}, {"b": "x"}, []]),
        (record(a=ANY), [{}], [None]),
        (RecordWith({"a": TEXT}, "R"), [{"a": "x", "b": 1}], [{"b": 1}]),
        (Union((TEXT, NULL)), ["x", None], [1]),
        (Var("T"), [1, None], []),
        (_PERCENT, [0, 100], [-1, 101, "5"]),
        (Refined(NUMBER, Range(min=1.0)), [1, 1e9], [0]),
        (Refined(TEXT, OneOf(("a", "b"))), ["a"], ["c"]),
        (Refined(ANY, OneOf((1, None))), [1, None], [1.0, True, 0]),
        (Refined(ANY, NonEmpty()), ["x", [0], {"a": 0}], ["", [], {}, 5, None]),
        (LiteralType({"a": 1}), [{"a": 1}], [{"a": 1.0}, {}]),
    ],
    ids=lambda value: show(value) if not isinstance(value, list) else "",
)
def test_values_fit_their_type_or_not(of, right, wrong):
    assert [value for value in right if find_type_error(value, of) is not None] == []
    assert [value for value in wrong if find_type_error(value, of) is None] == []


@pytest.mark.parametrize(
    ("value", "of", "result"),
    [
        (1, TEXT, "expected Text, found a number (1)"),
        ({"a": [{}]}, record(a=ListOf(record(b=TEXT))), "expected Text at $.a[0].b, found nothing"),
        ({"k y": 1}, MapOf(TEXT, TEXT), 'expected Text at $["k y"], found a number (1)'),
        ({"a": 1}, Union((NULL, record(a=TEXT))), "expected Text at $.a, found a number (1)"),
        (
            [[101]],
            ListOf(ListOf(_PERCENT)),
            "expected Range(0..=100) at $[0][0], found a number (101)",
        ),
        ("x" * 99, NUMBER, 'expected Number, found a text ("' + "x" * 59 + "…)"),
    ],
)
def test_a_mismatch_names_the_path_and_the_difference(value, of, result):
    assert str(find_type_error(value, of)) == result


def test_numbers_and_booleans_are_never_mistaken_for_each_other():
    assert same({"a": [1]}, {"a": [1]})
    assert not same(1, 1.0)
    assert not same(1, True)
    assert not same(0, False)


def test_a_type_can_be_inferred_from_a_value():
    value = {"n": 1, "t": ["a", None], "e": [], "b": True}
    assert show(infer(value)) == (
        "Record { b: Bool, e: List<Any>, n: Number, t: List<Null | Text> }"
    )
