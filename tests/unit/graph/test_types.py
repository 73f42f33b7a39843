"""Types in every spelling, in their order, and in readable form."""

from __future__ import annotations

import pytest

from caloron.graph.errors import ParseError
from caloron.graph.type_syntax import parse_shorthand, parse_type
from caloron.graph.types import (
    ANY,
    BOOL,
    NULL,
    NUMBER,
    TEXT,
    ListOf,
    MapOf,
    NonEmpty,
    OneOf,
    Range,
    RecordWith,
    Refined,
    StreamOf,
    Union,
    Var,
    optional,
    record,
    show,
    type_json,
    union,
)
from tests.support.noether import STDLIB

_EVERY = (
    ANY,
    ListOf(TEXT),
    StreamOf(NUMBER),
    MapOf(TEXT, ANY),
    record(b=NUMBER, a=ListOf(BOOL)),
    RecordWith({"done": BOOL}, "R"),
    Union((TEXT, NULL)),
    Var("T"),
    Refined(NUMBER, Range(0.0, 100.0)),
    Refined(NUMBER, Range(max=5.0)),
    Refined(TEXT, OneOf(("a", 1, None))),
    Refined(ListOf(ANY), NonEmpty()),
)


@pytest.mark.parametrize("of", _EVERY, ids=show)
def test_a_type_written_as_json_reads_back(of):
    assert parse_type(type_json(of)) == of


@pytest.mark.parametrize("published", STDLIB, ids=lambda stage: stage["name"])
def test_the_types_of_the_standard_library_are_written_as_published(published):
    for side in ("input", "output"):
        assert type_json(parse_type(published[side])) == published[side]


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
        (Refined(NUMBER, Range(0.0, 100.0)), "Number | Range(0..=100)"),
    ],
)
def test_a_type_has_a_readable_form(of, shown):
    assert show(of) == shown
