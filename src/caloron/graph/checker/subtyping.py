"""Whether a type accepts another type, and whether a value has a type."""

from __future__ import annotations

from collections.abc import Mapping
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
    StreamOf,
    Union,
    Var,
    json_kind,
    nullable,
    show,
    show_refinement,
)

_SHOWN = 60


class TypeMismatch(NamedTuple):
    """Where a value is not what was expected there."""

    path: str
    expected: str
    found: str

    def __str__(self) -> str:
        where = f" at {self.path}" if self.path != "$" else ""
        return f"expected {self.expected}{where}, found {self.found}"


def find_type_error(value: Json, of: NType, path: str = "$") -> TypeMismatch | None:
    """The first place where a value is not of a type, refinements at any depth included."""
    return None if of == ANY else _misfit(unwrap(value), of, path)


def _misfit(value: Json, of: NType, path: str) -> TypeMismatch | None:
    match of:
        case Primitive(kind):
            return None if _is_primitive(value, kind) else _wrong(value, of, path)
        case Var():
            return None
        case ListOf(item) | StreamOf(item):
            return _list_misfit(value, of, item, path)
        case MapOf():
            return _map_misfit(value, of, path)
        case Record(fields) | RecordWith(fields):
            return _record_misfit(value, of, fields, path)
        case Union(members):
            fits = any(find_type_error(value, one, path) is None for one in members)
            return None if fits else _union_misfit(value, of, members, path)
        case Refined(base, refinement):
            return find_type_error(value, base, path) or _refinement_misfit(value, refinement, path)
        case LiteralType(known):
            return None if same(value, known) else _wrong(value, of, path)


def _is_primitive(value: Json, kind: str) -> bool:
    match kind:
        case "Null":
            return value is None
        case "Bool":
            return isinstance(value, bool)
        case "Number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "VNode":
            return isinstance(value, dict)
        case _:
            return isinstance(value, str)


def _wrong(value: Json, of: NType, path: str) -> TypeMismatch:
    return TypeMismatch(path, show(of), _shown(value))


def _shown(value: Json) -> str:
    if isinstance(value, dict | list):
        return json_kind(value)
    text = compact(value)
    return f"{json_kind(value)} ({text if len(text) <= _SHOWN else text[:_SHOWN] + '…'})"


def _list_misfit(value: Json, of: NType, item: NType, path: str) -> TypeMismatch | None:
    if not isinstance(value, list):
        return _wrong(value, of, path)
    if item == ANY:
        return None
    found = (find_type_error(one, item, f"{path}[{index}]") for index, one in enumerate(value))
    return next((one for one in found if one is not None), None)


def _map_misfit(value: Json, of: MapOf, path: str) -> TypeMismatch | None:
    if not isinstance(value, dict) or not (of.key in (TEXT, ANY) or isinstance(of.key, Var)):
        return _wrong(value, of, path)
    found = (find_type_error(one, of.value, member(path, key)) for key, one in value.items())
    return next((one for one in found if one is not None), None)


def _record_misfit(
    value: Json, of: NType, fields: Mapping[str, NType], path: str
) -> TypeMismatch | None:
    if not isinstance(value, dict):
        return _wrong(value, of, path)
    for name, expected in fields.items():
        if name in value:
            found = find_type_error(value[name], expected, member(path, name))
        else:
            found = None if nullable(expected) else _absent(name, expected, path)
        if found is not None:
            return found
    return None


def _absent(name: str, expected: NType, path: str) -> TypeMismatch:
    return TypeMismatch(member(path, name), show(expected), "nothing")


def _union_misfit(value: Json, of: NType, members: tuple[NType, ...], path: str) -> TypeMismatch:
    """Of a union with one record, what is wrong with an object is told about that record."""
    records = [one for one in members if isinstance(one, Record | RecordWith)]
    if isinstance(value, dict) and len(records) == 1:
        inner = find_type_error(value, records[0], path)
        if inner is not None:
            return inner
    return _wrong(value, of, path)


def _refinement_misfit(value: Json, refinement: Refinement, path: str) -> TypeMismatch | None:
    if holds(value, refinement):
        return None
    return TypeMismatch(path, show_refinement(refinement), _shown(value))


def holds(value: Json, refinement: Refinement) -> bool:
    """Whether a value is among those that a refinement means."""
    match refinement:
        case Range(low, high):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            return number and (low is None or value >= low) and (high is None or value <= high)
        case OneOf(options):
            return any(same(value, option) for option in options)
        case _:
            return isinstance(value, str | list | dict) and len(value) > 0


def outer_misfit(value: Json, of: NType) -> TypeMismatch | None:
    """What 0.8.2 looks at while running: only the outermost refinements of a type."""
    while isinstance(of, Refined):
        found = _refinement_misfit(value, of.refinement, "$")
        if found is not None:
            return found
        of = of.base
    return None


def same(one: Json, other: Json) -> bool:
    """Equality of JSON values: 1, 1.0 and true are three different ones."""
    return one is other or compact(one) == compact(other)


def accepts(expected: NType, produced: NType) -> bool:
    """Whether a value of the produced type may always go where the other is expected."""
    return mismatch(produced, expected) is None


def mismatch(produced: NType, expected: NType) -> str | None:
    """Why a produced type does not fit an expected one; None if it does. The order counts."""
    if isinstance(produced, LiteralType):
        found = find_type_error(produced.value, expected)
        return None if found is None else str(found)
    if ANY in (produced, expected) or isinstance(produced, Var) or isinstance(expected, Var):
        return None
    if isinstance(produced, Refined) or isinstance(expected, Refined):
        return _refined(produced, expected)
    if isinstance(produced, Record | RecordWith) and isinstance(expected, Record | RecordWith):
        return _records(produced.fields, expected.fields)
    if isinstance(produced, Union):
        reasons = (mismatch(one, expected) for one in produced.members)
        return next((reason for reason in reasons if reason is not None), None)
    if isinstance(expected, Union):
        fits = any(mismatch(produced, one) is None for one in expected.members)
        return None if fits else _unlike(produced, expected)
    return _constructed(produced, expected)


def _unlike(produced: NType, expected: NType) -> str:
    return f"{show(produced)} is not {show(expected)}"


def _refined(produced: NType, expected: NType) -> str | None:
    """A refinement is only ever equal to itself, and is lost before a union is looked at."""
    if not isinstance(produced, Refined):
        return f"{show(produced)} may hold values that {show(expected)} does not allow"
    if not isinstance(expected, Refined):
        return mismatch(produced.base, expected)
    if produced.refinement != expected.refinement:
        return _unlike(produced, expected)
    return mismatch(produced.base, expected.base)


def _constructed(produced: NType, expected: NType) -> str | None:
    match produced, expected:
        case (ListOf(one), ListOf(other)) | (StreamOf(one), StreamOf(other)):
            return mismatch(one, other)
        case MapOf(key, value), MapOf(other_key, other_value):
            return mismatch(key, other_key) or mismatch(value, other_value)
    return None if produced == expected else _unlike(produced, expected)


def _records(produced: Mapping[str, NType], expected: Mapping[str, NType]) -> str | None:
    """Every expected field is there, or may be left out; others are welcome."""
    for name, of in expected.items():
        if name not in produced:
            if not nullable(of):
                return f"the field `{name}` ({show(of)}) is missing"
            continue
        reason = mismatch(produced[name], of)
        if reason is not None:
            return f"in the field `{name}`: {reason}"
    return None
