"""Whether what one stage gives may go where another type is expected."""

from __future__ import annotations

from collections.abc import Mapping

from caloron.graph.types import (
    ANY,
    Known,
    ListOf,
    MapOf,
    NType,
    Record,
    RecordWith,
    Refined,
    StreamOf,
    Union,
    Var,
    nullable,
    show,
)
from caloron.graph.values import misfit


def accepts(expected: NType, produced: NType) -> bool:
    """Whether a value of the produced type may always go where the other is expected."""
    return mismatch(produced, expected) is None


def mismatch(produced: NType, expected: NType) -> str | None:
    """Why a produced type does not fit an expected one; None if it does. The order counts."""
    if isinstance(produced, Known):
        found = misfit(produced.value, expected)
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
