"""Compares values and types with types, and explains the first difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from caloron.graph.json_text import Json, compact, member, unwrap
from caloron.graph.types import (
    ANY,
    TEXT,
    ListOf,
    LiteralType,
    MapOf,
    NType,
    OneOf,
    Primitive,
    Range,
    Record,
    RecordWith,
    Refined,
    Refinement,
    Union,
    Var,
    json_kind,
    nullable,
    show,
    show_refinement,
)

_SHOWN = 60
#: The kinds of JSON values that the primitive types other than Any have.
_JSON_KINDS = {
    "Null": "null",
    "Bool": "a boolean",
    "Number": "a number",
    "Text": "a text",
    "Bytes": "a text",
    "VNode": "an object",
}


class TypeMismatch(NamedTuple):
    """The place of a value that differs from what was expected there."""

    path: str
    expected: str
    found: str

    def __str__(self) -> str:
        where = f" at {self.path}" if self.path != "$" else ""
        return f"expected {self.expected}{where}, found {self.found}"


def find_type_error(value: Json, of: NType, path: str = "$") -> TypeMismatch | None:
    """Return the first place where a value differs from a type, refinements at any depth included.

    A missing field is found as `nothing`.
    """
    if of == ANY or isinstance(of, Var):
        return None
    value = unwrap(value)
    match of:
        case Union(members):
            if any(find_type_error(value, one, path) is None for one in members):
                return None
            records = [one for one in members if isinstance(one, Record | RecordWith)]
            if isinstance(value, dict) and len(records) == 1:
                # An object is most likely meant as the one record of the union.
                return find_type_error(value, records[0], path)
        case Refined(base, refinement):
            if error := find_type_error(value, base, path):
                return error
            if _satisfies(value, refinement):
                return None
            return TypeMismatch(path, show_refinement(refinement), _shown(value))
        case _ if _has_kind(value, of):
            return _first_error_within(value, of, path)
    return TypeMismatch(path, show(of), _shown(value))


def _has_kind(value: Json, of: NType) -> bool:
    """True if only parts of the value can still differ from the type."""
    match of:
        case Primitive(kind):
            return json_kind(value) == _JSON_KINDS[kind]
        case LiteralType(known):
            return same(value, known)
        case ListOf():
            return isinstance(value, list)
        case MapOf(key):
            return isinstance(value, dict) and (key in (TEXT, ANY) or isinstance(key, Var))
    return isinstance(value, dict)


def _first_error_within(value: Json, of: NType, path: str) -> TypeMismatch | None:
    if isinstance(of, Record | RecordWith):
        for name, expected in of.fields.items():
            if name not in value and not nullable(expected):
                return TypeMismatch(member(path, name), show(expected), "nothing")
            if name in value and (
                error := find_type_error(value[name], expected, member(path, name))
            ):
                return error
        return None
    errors = (find_type_error(part, item, at) for part, item, at in _items(value, of, path))
    return next(filter(None, errors), None)


def _items(value: Json, of: NType, path: str) -> Iterator[tuple[Json, NType, str]]:
    match of:
        case ListOf(item) if item != ANY:
            return ((part, item, f"{path}[{index}]") for index, part in enumerate(value))
        case MapOf(_, item) if item != ANY:
            return ((part, item, member(path, key)) for key, part in value.items())
    return iter(())


def _shown(value: Json) -> str:
    if isinstance(value, dict | list):
        return json_kind(value)
    text = compact(value)
    return f"{json_kind(value)} ({text if len(text) <= _SHOWN else text[:_SHOWN] + '…'})"


def _satisfies(value: Json, refinement: Refinement) -> bool:
    match refinement:
        case Range(low, high):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            return number and (low is None or value >= low) and (high is None or value <= high)
        case OneOf(options):
            return any(same(value, option) for option in options)
    return isinstance(value, str | list | dict) and len(value) > 0


def same(one: Json, other: Json) -> bool:
    """Compare JSON values; 1, 1.0 and true are three different ones."""
    return one is other or compact(one) == compact(other)


def accepts(expected: NType, produced: NType) -> bool:
    """True if every value of the produced type may go where the other type is expected."""
    return mismatch(produced, expected) is None


def mismatch(produced: NType, expected: NType) -> str | None:
    """Return why a produced type does not fit an expected one; None if it does.

    The order of the cases is part of the format: a refined type is compared before a union, so a
    refinement does not fit a union that contains it.
    """
    if isinstance(produced, LiteralType):
        error = find_type_error(produced.value, expected)
        return None if error is None else str(error)
    if ANY in (produced, expected) or isinstance(produced, Var) or isinstance(expected, Var):
        return None
    match produced, expected:
        case Refined(base, refinement), Refined(other, same_refinement):
            unlike = refinement != same_refinement
            return _unlike(produced, expected) if unlike else mismatch(base, other)
        case Refined(base), _:
            return mismatch(base, expected)
        case _, Refined():
            return f"{show(produced)} may hold values that {show(expected)} does not allow"
    return _unrefined_mismatch(produced, expected)


def _unrefined_mismatch(produced: NType, expected: NType) -> str | None:
    match produced, expected:
        case ((Record(fields) | RecordWith(fields)), (Record(others) | RecordWith(others))):
            return _record_mismatch(fields, others)
        case Union(members), _:
            return next(filter(None, (mismatch(one, expected) for one in members)), None)
        case _, Union(members):
            fits = any(mismatch(produced, one) is None for one in members)
            return None if fits else _unlike(produced, expected)
        case ListOf(item), ListOf(other) if type(produced) is type(expected):
            return mismatch(item, other)
        case MapOf(key, item), MapOf(other_key, other):
            return mismatch(key, other_key) or mismatch(item, other)
    return None if produced == expected else _unlike(produced, expected)


def _unlike(produced: NType, expected: NType) -> str:
    return f"{show(produced)} is not {show(expected)}"


def _record_mismatch(produced: Mapping[str, NType], expected: Mapping[str, NType]) -> str | None:
    """Fields that are not expected do no harm; a nullable field may be missing."""
    for name, of in expected.items():
        if name not in produced:
            if not nullable(of):
                return f"the field `{name}` ({show(of)}) is missing"
        elif reason := mismatch(produced[name], of):
            return f"in the field `{name}`: {reason}"
    return None
