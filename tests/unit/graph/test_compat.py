"""Where a type may go: the published table, the answers of the real program, unification."""

from __future__ import annotations

import pytest

from caloron.graph.compat import accepts, mismatch
from caloron.graph.shorthand import parse_shorthand
from caloron.graph.types import (
    ANY,
    BOOL,
    BYTES,
    NULL,
    NUMBER,
    TEXT,
    VNODE,
    Known,
    ListOf,
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
from caloron.graph.unify import CannotUnify, Substitution, has_variables, renamed
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
    assert accepts(MapOf(TEXT, NUMBER), Known({"a": 1}))
    assert accepts(_PERCENT, Known(50))
    assert not accepts(_PERCENT, Known(150))
    assert not accepts(MapOf(TEXT, NUMBER), Known({"a": "1"}))


def _unified(one: NType, other: NType, result: NType) -> NType:
    known = Substitution()
    known.unify(one, other)
    return known.apply(result)


@pytest.mark.parametrize(
    ("given", "expected", "asked", "answer"),
    [
        (ListOf(NUMBER), ListOf(Var("T")), Var("T"), NUMBER),
        (optional(TEXT), Var("T"), Var("T"), optional(TEXT)),
        (_PERCENT, Var("T"), Var("T"), NUMBER),
        (
            record(name=TEXT, age=NUMBER),
            RecordWith({}, "R"),
            RecordWith({"done": BOOL}, "R"),
            record(age=NUMBER, done=BOOL, name=TEXT),
        ),
        (MapOf(TEXT, Var("V")), MapOf(Var("K"), BOOL), record(k=Var("K"), v=Var("V")), None),
    ],
)
def test_variables_are_found(given, expected, asked, answer):
    found = _unified(given, expected, asked)
    assert found == (answer or record(k=TEXT, v=BOOL))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (record(a=TEXT, b=TEXT), record(a=Var("T"))),
        (RecordWith({}, "R"), RecordWith({}, "S")),
        (RecordWith({"a": TEXT}, "R"), record(b=TEXT)),
        (Var("T"), ListOf(Var("T"))),
        (Union((TEXT, Var("T"))), Union((TEXT, NUMBER, NULL))),
        (record(a=Var("T"), b=Var("T")), record(a=TEXT, b=NUMBER)),
        (ListOf(Var("T")), StreamOf(TEXT)),
    ],
)
def test_what_cannot_be_made_equal_is_refused_and_nothing_is_learnt(one, other):
    known = Substitution()
    known.unify(Var("before"), BOOL)
    with pytest.raises(CannotUnify):
        known.unify(one, other)
    assert known.apply(Var("before")) == BOOL
    assert known.apply(Var("T")) == Var("T")


def test_a_failure_also_takes_back_what_it_shortened_on_the_way():
    one, two, three = Var("T1"), Var("T2"), Var("T3")
    known = Substitution()
    known.unify(one, two)
    known.unify(two, three)
    with pytest.raises(CannotUnify):
        known.unify(record(a=three, b=one, c=TEXT), record(a=NUMBER, b=NUMBER, c=NUMBER))
    known.unify(three, TEXT)
    assert [known.apply(of) for of in (one, two, three)] == [TEXT, TEXT, TEXT]


def test_any_stands_for_a_variable_of_its_own():
    assert has_variables(_unified(ANY, ListOf(Var("T")), Var("T")))
    known = Substitution()
    known.unify(record(a=ANY, b=ANY), record(a=TEXT, b=Var("T")))
    known.unify(Var("T"), NUMBER)
    assert known.apply(Var("T")) == NUMBER


def test_a_type_that_would_grow_without_end_is_refused():
    def twice_as_large_up_to(uses: int) -> None:
        known = Substitution()
        for use in range(uses):
            before, after = Var(f"T#{use}"), Var(f"T#{use + 1}")
            known.unify(after, record(a=before, b=before))
            known.apply(after)

    twice_as_large_up_to(10)
    with pytest.raises(CannotUnify, match="grows without end"):
        twice_as_large_up_to(40)


@pytest.mark.parametrize("uses", [50, 2000])
def test_a_type_that_gets_ever_deeper_is_refused_before_it_is_too_deep(uses):
    known = Substitution()

    def deeper_and_deeper() -> None:
        for use in range(uses):
            known.unify(ListOf(Var(f"T#{use}")), Var(f"T#{use + 1}"))
        known.apply(Var(f"T#{uses}"))

    if uses < 100:
        deeper_and_deeper()
    else:
        with pytest.raises(CannotUnify, match="grows without end"):
            deeper_and_deeper()


def test_a_union_whose_variable_is_known_is_in_its_normal_form():
    assert _unified(Var("T"), TEXT, Union((Var("T"), NULL))) == Union((NULL, TEXT))
    assert _unified(Var("T"), NULL, Union((Var("T"), NULL))) == NULL


def test_renaming_makes_variables_of_their_own():
    of = record(a=ListOf(Var("T")), b=RecordWith({}, "R"))
    assert renamed(of, "#1") == record(a=ListOf(Var("T#1")), b=RecordWith({}, "R#1"))
    assert show(renamed(of, "#1")) == show(of)
