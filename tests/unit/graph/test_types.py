"""Types: their spellings and forms, the values that fit them, and which type fits which."""

from __future__ import annotations

import pytest

from caloron.graph.checker import instantiate
from caloron.graph.errors import ParseError
from caloron.graph.subtyping import accepts, find_type_error, mismatch, same
from caloron.graph.type_syntax import parse_shorthand, parse_type
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
    NType,
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
    type_json,
    union,
)
from tests.support.noether import VECTORS

_PERCENT = Refined(NUMBER, Range(0.0, 100.0))
_EVERY = (
    ANY,
    ListOf(TEXT),
    StreamOf(NUMBER),
    MapOf(TEXT, ANY),
    record(b=NUMBER, a=ListOf(BOOL)),
    RecordWith({"done": BOOL}, "R"),
    Union((TEXT, NULL)),
    Var("T"),
    _PERCENT,
    Refined(NUMBER, Range(max=5.0)),
    Refined(TEXT, OneOf(("a", 1, None))),
    Refined(ListOf(ANY), NonEmpty()),
)


@pytest.mark.parametrize("of", _EVERY, ids=show)
def test_a_type_written_as_json_reads_back(of):
    assert parse_type(type_json(of)) == of


@pytest.mark.parametrize(
    ("short", "of"),
    [
        ("Text", TEXT),
        ({"List": "Text"}, ListOf(TEXT)),
        ({"List": {"kind": "Text"}}, ListOf(TEXT)),
        ({"kind": "List", "value": "Text"}, ListOf(TEXT)),
        ({"kind": "List", "value": {"kind": "Text"}}, ListOf(TEXT)),
        ({"kind": "List", "value": {"List": "Number"}}, ListOf(ListOf(NUMBER))),
        ({"List": {"kind": "List", "value": {"kind": "Any"}}}, ListOf(ListOf(ANY))),
        ({"Stream": "Bool"}, StreamOf(BOOL)),
        ({"kind": "Stream", "value": {"kind": "Bool"}}, StreamOf(BOOL)),
        ({"Map": ["Text", {"List": "Any"}]}, MapOf(TEXT, ListOf(ANY))),
        ({"kind": "Map", "value": {"key": "Text", "value": "Any"}}, MapOf(TEXT, ANY)),
        ({"Record": [["b", "Number"], ["a", "Text"]]}, record(a=TEXT, b=NUMBER)),
        ({"kind": "Record", "value": {"a": {"List": "Text"}}}, record(a=ListOf(TEXT))),
        ({"Union": ["Text", "Null"]}, Union((TEXT, NULL))),
        ({"kind": "Union", "value": ["Text", {"kind": "Null"}]}, Union((TEXT, NULL))),
        ({"kind": "Var", "value": "T"}, Var("T")),
    ],
)
def test_every_spelling_means_one_type(short, of):
    assert parse_shorthand(short) == of


@pytest.mark.parametrize(
    ("spelled", "path"),
    [
        ("Txt", "$"),
        ("Text?", "$"),
        (7, "$"),
        ({"List": "Nope"}, "$.List"),
        ({"Record": {"a": "Text"}}, "$.Record"),
        ({"Record": [["a"]]}, "$.Record[0]"),
        ({"Record": [["a", "Text"], ["b", "Nope"]]}, "$.Record[1][1]"),
        ({"Map": ["Text"]}, "$.Map"),
        ({"Text": 1, "List": 2}, "$"),
        ({"kind": "Refined", "value": {"base": {"kind": "Text"}}}, "$.value"),
        ({"kind": "Union", "value": {}}, "$.value"),
        ({"kind": "Var", "value": 3}, "$.value"),
    ],
)
def test_an_invalid_type_is_refused_with_the_path(spelled, path):
    with pytest.raises(ParseError) as refused:
        parse_shorthand(spelled)
    assert refused.value.path == path


def test_a_union_is_sorted_flat_and_without_doubles_only_when_it_is_built():
    assert union([TEXT, Union((NULL, TEXT)), NUMBER]) == Union((NULL, NUMBER, TEXT))
    assert union([TEXT, TEXT]) == TEXT
    assert union([]) == NULL
    assert optional(TEXT) == Union((NULL, TEXT))
    assert union([Var("T"), Refined(TEXT, NonEmpty()), record(a=TEXT), ListOf(TEXT)]) == Union(
        (ListOf(TEXT), record(a=TEXT), Var("T"), Refined(TEXT, NonEmpty()))
    )
    assert parse_type({"kind": "Union", "value": [{"kind": "Text"}, {"kind": "Null"}]}) == Union(
        (TEXT, NULL)
    )


@pytest.mark.parametrize(
    ("of", "shown"),
    [
        (ListOf(TEXT), "List<Text>"),
        (MapOf(TEXT, NUMBER), "Map<Text, Number>"),
        (record(b=NUMBER, a=TEXT), "Record { a: Text, b: Number }"),
        (Union((NULL, TEXT)), "Null | Text"),
        (Var("T"), "<T>"),
        (RecordWith({"a": TEXT}, "R"), "Record { a: Text, ...<R> }"),
        (_PERCENT, "Number | Range(0..=100)"),
    ],
)
def test_a_type_has_a_readable_form(of, shown):
    assert show(of) == shown


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


_TYPES = {name: parse_shorthand(written) for name, written in VECTORS["compat_types"].items()}
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
