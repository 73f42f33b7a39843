"""The types of stages, their JSON, and their form in messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from caloron.graph.json_text import Json, canonical, compact

PRIMITIVES = ("Any", "Bool", "Bytes", "Null", "Number", "Text", "VNode")


class Primitive(msgspec.Struct, frozen=True):
    """One of the seven types without parts."""

    kind: str


class ListOf(msgspec.Struct, frozen=True):
    """A JSON array of one type."""

    item: NType


class StreamOf(ListOf, frozen=True):
    """A list whose items may be produced one by one; its values are arrays."""


class MapOf(msgspec.Struct, frozen=True):
    """An object with any keys and values of one type."""

    key: NType
    value: NType


class Record(msgspec.Struct, frozen=True):
    """An object with named fields."""

    fields: Mapping[str, NType]


class RecordWith(msgspec.Struct, frozen=True):
    """An object with named fields and others, for which the row variable stands."""

    fields: Mapping[str, NType]
    rest: str


class Union(msgspec.Struct, frozen=True):
    """A value of any of these types, in the order in which they were written."""

    members: tuple[NType, ...]


class Var(msgspec.Struct, frozen=True):
    """A type variable: the neighbours of a stage determine the type."""

    name: str


class Range(msgspec.Struct, frozen=True):
    """A number within bounds, which are inclusive."""

    min: float | None = None
    max: float | None = None


class OneOf(msgspec.Struct, frozen=True):
    """One of these JSON values."""

    options: tuple[Json, ...]


class NonEmpty(msgspec.Struct, frozen=True):
    """A text, list or object that is not empty."""


Refinement: TypeAlias = Range | OneOf | NonEmpty


class Refined(msgspec.Struct, frozen=True):
    """A type restricted to some of its values."""

    base: NType
    refinement: Refinement


class LiteralType(msgspec.Struct, frozen=True):
    """Exactly this value: the type of a constant, or of an input that is known."""

    value: Json


NType: TypeAlias = (
    Primitive | ListOf | MapOf | Record | Union | Var | RecordWith | Refined | LiteralType
)

ANY, BOOL, BYTES, NULL, NUMBER, TEXT, VNODE = (Primitive(kind) for kind in PRIMITIVES)


def record(**fields: NType) -> Record:
    """Return a record type with these fields, in the order that hashes use."""
    return sorted_record(fields)


def sorted_record(fields: Mapping[str, NType]) -> Record:
    return Record({name: fields[name] for name in sorted(fields)})


def union(members: Iterable[NType]) -> NType:
    """Return the normal form of a union: flat by one level, sorted, distinct, never of one type."""
    flat: list[NType] = []
    for of in members:
        flat.extend(of.members if isinstance(of, Union) else (of,))
    distinct: list[NType] = []
    for of in sorted(flat, key=_rank):
        if not distinct or distinct[-1] != of:
            distinct.append(of)
    if not distinct:
        return NULL
    return distinct[0] if len(distinct) == 1 else Union(tuple(distinct))


def optional(of: NType) -> NType:
    """Return the union of a type and Null; a record may omit a field of such a type."""
    return union((of, NULL))


def nullable(of: NType) -> bool:
    """True if a record may omit a field of this type."""
    if isinstance(of, Union):
        return any(map(nullable, of.members))
    return isinstance(of, Var) or of in (NULL, ANY)


_SORTED_BEFORE_VARIABLES = (*PRIMITIVES, "List", "Map", "Record", "Stream", "Union")
#: The kinds of types in the order in which unions sort them.
TYPE_ORDER = {
    name: place
    for place, name in enumerate(
        (*sorted(_SORTED_BEFORE_VARIABLES), "Var", "RecordWith", "Refined")
    )
}


def _rank(of: NType) -> tuple[int, tuple[object, ...]]:
    """Return the sort key of a type within a union."""
    content: tuple[object, ...] = tuple(map(_rank, parts(of)))
    match of:
        case Record(fields):
            content = _fields_rank(fields)
        case RecordWith(fields, rest):
            content = (_fields_rank(fields), rest)
        case Var(name):
            content = (name,)
        case Refined(_, refinement):
            content = (*content, compact(refinement_json(refinement)))
        case LiteralType(known):
            return _rank(infer(known))
    return TYPE_ORDER[kind_of(of)], content


def _fields_rank(fields: Mapping[str, NType]) -> tuple[object, ...]:
    return tuple((name, _rank(fields[name])) for name in sorted(fields))


def kind_of(of: NType) -> str:
    """Return the word that names this type in JSON."""
    if isinstance(of, LiteralType):
        of = infer(of.value)
    return of.kind if isinstance(of, Primitive) else _KINDS[type(of)]


_KINDS: dict[type, str] = {
    ListOf: "List",
    StreamOf: "Stream",
    MapOf: "Map",
    Record: "Record",
    RecordWith: "RecordWith",
    Union: "Union",
    Var: "Var",
    Refined: "Refined",
}


def type_json(of: NType) -> Json:
    """Return the type as canonical JSON, which ids hash."""
    match of:
        case Primitive(kind):
            return {"kind": kind}
        case ListOf(item):
            value: Json = type_json(item)
        case MapOf(key, item):
            value = {"key": type_json(key), "value": type_json(item)}
        case Record(fields):
            value = _fields_json(fields)
        case RecordWith(fields, rest):
            value = {"fields": _fields_json(fields), "rest": rest}
        case Union(members):
            value = list(map(type_json, members))
        case Var(name):
            value = name
        case Refined(base, refinement):
            value = {"base": type_json(base), "refinement": refinement_json(refinement)}
        case LiteralType(known):
            return type_json(infer(known))
    return {"kind": kind_of(of), "value": value}


def _fields_json(fields: Mapping[str, NType]) -> Json:
    return {name: type_json(fields[name]) for name in sorted(fields)}


def refinement_json(refinement: Refinement) -> Json:
    match refinement:
        case Range(low, high):
            bounds = {"kind": "Range", "min": low, "max": high}
            return {name: bound for name, bound in bounds.items() if bound is not None}
        case OneOf(options):
            return {"kind": "OneOf", "options": list(options)}
        case NonEmpty():
            return {"kind": "NonEmpty"}


def show(of: NType) -> str:
    """Return the type as it is written in messages."""
    match of:
        case Primitive(kind):
            return kind
        case ListOf(item):
            return f"{kind_of(of)}<{show(item)}>"
        case MapOf(key, value):
            return f"Map<{show(key)}, {show(value)}>"
        case Record(fields):
            return _show_fields(fields)
        case RecordWith(fields, rest):
            return _show_fields(fields, f"...{show(Var(rest))}")
        case Union(members):
            return " | ".join(map(show, members))
        case Refined(base, refinement):
            return f"{show(base)} | {show_refinement(refinement)}"
    return show(infer(of.value)) if isinstance(of, LiteralType) else f"<{of.name}>"


def _show_fields(fields: Mapping[str, NType], *others: str) -> str:
    shown = [*(f"{name}: {show(fields[name])}" for name in sorted(fields)), *others]
    return f"Record {{ {', '.join(shown)} }}" if shown else "Record {}"


def show_refinement(refinement: Refinement) -> str:
    match refinement:
        case Range(low, high):
            upper = "" if high is None else f"={canonical(high)}"
            return f"Range({'' if low is None else canonical(low)}..{upper})"
        case OneOf(options):
            return f"OneOf({', '.join(compact(option) for option in options)})"
        case NonEmpty():
            return "NonEmpty"


def parts(of: NType) -> Iterable[NType]:
    """Return the types that a type consists of."""
    match of:
        case ListOf(item):
            return (item,)
        case MapOf(key, value):
            return (key, value)
        case Record(fields) | RecordWith(fields):
            return fields.values()
        case Union(members):
            return members
        case Refined(base):
            return (base,)
    return ()


def with_parts(of: NType, change: Callable[[NType], NType]) -> NType:
    """Return the type with each of its parts changed."""
    match of:
        case ListOf(item):
            return type(of)(change(item))
        case MapOf(key, value):
            return MapOf(change(key), change(value))
        case Record(fields):
            return Record({name: change(part) for name, part in fields.items()})
        case RecordWith(fields, rest):
            return RecordWith({name: change(part) for name, part in fields.items()}, rest)
        case Union(members):
            return Union(tuple(map(change, members)))
        case Refined(base, refinement):
            return Refined(change(base), refinement)
    return of


def infer(value: Json) -> NType:
    """Return the narrowest type of one value."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int | float):
        return NUMBER
    if isinstance(value, str):
        return TEXT
    if isinstance(value, dict):
        return sorted_record({name: infer(of) for name, of in value.items()})
    return ListOf(union(map(infer, value)) if value else ANY)


_JSON_KINDS: tuple[tuple[Any, str], ...] = (
    (type(None), "null"),
    (bool, "a boolean"),
    (int | float, "a number"),
    (str, "a text"),
    (list, "an array"),
    (dict, "an object"),
)


def json_kind(value: Json) -> str:
    """Return the kind of a JSON value, for messages."""
    for kind, name in _JSON_KINDS:
        if isinstance(value, kind):
            return name
    return f"a {type(value).__name__}"
