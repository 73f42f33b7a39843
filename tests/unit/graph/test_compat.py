"""Where a type may go: the published table, the answers of the real program, unification."""

from __future__ import annotations

import pytest

from caloron.graph.checker.checker import instantiate
from caloron.graph.checker.subtyping import accepts, mismatch
from caloron.graph.type_syntax import parse_shorthand
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
    NType,
    Range,
    Record,
    RecordWith,
    Refined,
    StreamOf,
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
_ABC = record(a=TEXT, b=TEXT, c=TEXT)


@pytest.mark.parametrize(("produced", "expected", "accepted"), VECTORS["compat"])
def test_the_real_program_gives_the_same_verdict(produced, expected, accepted):
    assert accepts(_TYPES[expected], _TYPES[produced]) is accepted


_TABLE: list[tuple[NType, NType, bool]] = [
    (TEXT, ANY, True),
    (ANY, record(a=TEXT), True),
    (ANY, _PERCENT, True),
    (NUMBER, TEXT, False),
    (BYTES, TEXT, False),
    (NULL, TEXT, False),
    (TEXT, optional(TEXT), True),
    (NULL, optional(TEXT), True),
    (optional(TEXT), TEXT, False),
    (optional(TEXT), Union((NULL, NUMBER, TEXT)), True),
    (Union((NULL, NUMBER, TEXT)), optional(TEXT), False),
    (_ABC, record(a=TEXT, b=TEXT), True),
    (record(a=TEXT), record(a=TEXT, b=NUMBER), False),
    (record(a=TEXT), record(a=TEXT, b=optional(NUMBER)), True),
    (record(a=TEXT), record(a=TEXT, b=ANY), True),
    (record(a=TEXT), record(a=TEXT, b=NULL), True),
    (record(a=TEXT), record(a=TEXT, b=_PERCENT), False),
    (record(d=record(x=TEXT, y=TEXT)), record(d=record(x=TEXT)), True),
    (record(a=optional(TEXT)), record(a=TEXT), False),
    (_ABC, Record({}), True),
    (TEXT, Record({}), False),
    (MapOf(TEXT, ANY), Record({}), False),
    (VNODE, Record({}), False),
    (record(a=TEXT), MapOf(TEXT, TEXT), False),
    (MapOf(TEXT, TEXT), record(a=TEXT), False),
    (MapOf(TEXT, ANY), MapOf(TEXT, TEXT), True),
    (MapOf(NUMBER, TEXT), MapOf(TEXT, TEXT), False),
    (ListOf(NUMBER), ListOf(Union((NUMBER, TEXT))), True),
    (ListOf(ANY), ListOf(TEXT), True),
    (ListOf(TEXT), TEXT, False),
    (ListOf(TEXT), StreamOf(TEXT), False),
    (ListOf(TEXT), ListOf(NUMBER), False),
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


def test_a_known_value_goes_wherever_it_fits():
    assert accepts(MapOf(TEXT, NUMBER), LiteralType({"a": 1}))
    assert accepts(_PERCENT, LiteralType(50))
    assert not accepts(_PERCENT, LiteralType(150))
    assert not accepts(MapOf(TEXT, NUMBER), LiteralType({"a": "1"}))


@pytest.mark.parametrize(
    ("given", "takes", "gives", "output"),
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
def test_a_generic_stage_gives_a_type_that_follows_from_its_input(given, takes, gives, output):
    assert instantiate(takes, gives, given) == output
