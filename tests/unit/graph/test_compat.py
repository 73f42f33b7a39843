"""Compatibility of types: the published table, the answers of the real program, unification."""

from __future__ import annotations

import pytest

from caloron.graph.checker.checker import instantiate
from caloron.graph.checker.subtyping import accepts, mismatch
from caloron.graph.type_syntax import parse_shorthand
from caloron.graph.types import (
    ANY,
    BOOL,
    NULL,
    NUMBER,
    TEXT,
    ListOf,
    LiteralType,
    MapOf,
    NType,
    Range,
    RecordWith,
    Refined,
    Union,
    Var,
    optional,
    record,
    show,
)
from tests.support.noether import VECTORS

_TYPES = {name: parse_shorthand(written) for name, written in VECTORS["compat_types"].items()}
_PERCENT = Refined(NUMBER, Range(0.0, 100.0))
_SORTABLE = Union(
    (
        ListOf(ANY),
        record(items=ListOf(ANY), key=optional(TEXT), descending=optional(BOOL)),
    )
)


@pytest.mark.parametrize(("produced", "expected", "accepted"), VECTORS["compat"])
def test_the_real_program_gives_the_same_verdict(produced, expected, accepted):
    assert accepts(_TYPES[expected], _TYPES[produced]) is accepted


#: The published rows with types that the recorded answers do not have.
_TABLE: list[tuple[NType, NType, bool]] = [
    (ANY, _PERCENT, True),
    (record(a=TEXT), record(a=TEXT, b=_PERCENT), False),
    (MapOf(NUMBER, TEXT), MapOf(TEXT, TEXT), False),
    (_PERCENT, NUMBER, True),
    (_PERCENT, optional(NUMBER), True),
    (NUMBER, _PERCENT, False),
    (Refined(NUMBER, Range(0.0, 10.0)), _PERCENT, False),
    (_PERCENT, _PERCENT, True),
    (_PERCENT, Union((NULL, _PERCENT)), False),
    (ListOf(NUMBER), _SORTABLE, True),
    (record(items=ListOf(NUMBER)), _SORTABLE, True),
    (RecordWith({"a": TEXT}, "R"), record(a=TEXT), True),
    (record(a=TEXT), RecordWith({"a": TEXT, "b": TEXT}, "R"), False),
]


@pytest.mark.parametrize(
    ("produced", "expected", "accepted"),
    _TABLE,
    ids=[f"{show(a)} -> {show(b)}" for a, b, _ in _TABLE],
)
def test_the_published_table(produced, expected, accepted):
    assert accepts(expected, produced) is accepted


def test_the_reason_names_the_field():
    assert mismatch(record(a=TEXT), record(a=record(b=TEXT))) == (
        "in the field `a`: Text is not Record { b: Text }"
    )
    assert mismatch(record(), record(b=NUMBER)) == "the field `b` (Number) is missing"


def test_a_known_value_is_accepted_by_every_type_that_it_fits():
    assert accepts(MapOf(TEXT, NUMBER), LiteralType({"a": 1}))
    assert accepts(_PERCENT, LiteralType(50))
    assert not accepts(_PERCENT, LiteralType(150))
    assert not accepts(MapOf(TEXT, NUMBER), LiteralType({"a": "1"}))


@pytest.mark.parametrize(
    ("value", "takes", "gives", "output"),
    [
        (ListOf(NUMBER), ListOf(Var("T")), Var("T"), NUMBER),
        (optional(TEXT), Var("T"), ListOf(Var("T")), ListOf(optional(TEXT))),
        (LiteralType([1]), ListOf(Var("T")), Var("T"), NUMBER),
        (
            record(name=TEXT, age=NUMBER),
            RecordWith({}, "R"),
            RecordWith({"done": BOOL}, "R"),
            record(age=NUMBER, done=BOOL, name=TEXT),
        ),
        (record(a=TEXT, b=NUMBER), record(a=Var("T"), b=Var("T")), Var("T"), ANY),
        (ANY, ListOf(Var("T")), record(t=Var("T")), record(t=ANY)),
    ],
)
def test_a_generic_stage_gives_a_type_that_follows_from_its_input(value, takes, gives, output):
    assert instantiate(takes, gives, value) == output
