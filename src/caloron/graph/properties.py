"""What authors promise about a stage's input and output, and whether an example keeps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from caloron.graph.jsontext import Json, compact
from caloron.graph.values import same

_MISSING = object()
_KINDS = ("null", "bool", "number", "string", "array", "object")


class Verdict(msgspec.Struct, frozen=True):
    """Whether a promise is kept; unknown for one that nobody here understands."""

    state: Literal["holds", "fails", "unknown"]
    reason: str = ""


_HOLDS = Verdict("holds")


class _Broken(Exception):
    """A promise that is not kept, or cannot even be looked at."""


def judge(promise: Json, input: Json, output: Json) -> Verdict:
    """Whether one entry of `properties` holds for an input and its output."""
    kind = promise.get("kind") if isinstance(promise, dict) else None
    rule = _RULES.get(kind) if isinstance(kind, str) else None
    if rule is None or not _is_whole(rule.fields, promise):
        return Verdict("unknown", f"not understood: {compact(promise)[:80]}")
    try:
        rule.check(promise, {"input": input, "output": output})
    except _Broken as broken:
        return Verdict("fails", str(broken))
    return _HOLDS


def _is_whole(fields: tuple[str, ...], promise: dict[str, Json]) -> bool:
    return all(
        isinstance(promise.get(name), list if name in ("set", "allowed") else str)
        for name in fields
    )


def _at(path: str, ends: Json) -> Json:
    """The value at a dotted path that begins with `input` or `output`."""
    found = ends
    for step in path.split("."):
        found = found.get(step, _MISSING) if isinstance(found, dict) else _MISSING
        if found is _MISSING:
            raise _Broken(f"nothing is at {path}")
    return found


def _length(path: str, ends: Json) -> int:
    value = _at(path, ends)
    if not isinstance(value, str | list | dict):
        raise _Broken(f"{path} has no length")
    return len(value)


def _need(kept: bool, reason: str) -> None:
    if not kept:
        raise _Broken(reason)


def _set_member(promise: Json, ends: Json) -> None:
    value = _at(promise["field"], ends)
    _need(any(same(value, one) for one in promise["set"]), f"{promise['field']} is another value")


def _range(promise: Json, ends: Json) -> None:
    path, value = promise["field"], _at(promise["field"], ends)
    _need(isinstance(value, int | float) and not isinstance(value, bool), f"{path} is no number")
    low, high = promise.get("min"), promise.get("max")
    _need(low is None or value >= low, f"{path} is {value}, under {low}")
    _need(high is None or value <= high, f"{path} is {value}, over {high}")


def _same_length(promise: Json, ends: Json) -> None:
    left, right = promise["left_field"], promise["right_field"]
    _need(_length(left, ends) == _length(right, ends), f"{left} is not as long as {right}")


def _not_longer(promise: Json, ends: Json) -> None:
    subject, bound = promise["subject_field"], promise["bound_field"]
    _need(_length(subject, ends) <= _length(bound, ends), f"{subject} is longer than {bound}")


def _subset(promise: Json, ends: Json) -> None:
    path, other = promise["subject_field"], promise["super_field"]
    part, whole = _at(path, ends), _at(other, ends)
    if isinstance(part, list) and isinstance(whole, list):
        known = {compact(one) for one in whole}
        kept = all(compact(one) in known for one in part)
    elif isinstance(part, dict) and isinstance(whole, dict):
        kept = all(key in whole and same(value, whole[key]) for key, value in part.items())
    else:
        kept = isinstance(part, str) and isinstance(whole, str) and part in whole
    _need(kept, f"{path} is not within {other}")


def _equal(promise: Json, ends: Json) -> None:
    left, right = promise["left_field"], promise["right_field"]
    _need(same(_at(left, ends), _at(right, ends)), f"{left} is not {right}")


def _kind_allowed(promise: Json, ends: Json) -> None:
    kind = _kind_of(_at(promise["field"], ends))
    _need(kind in promise["allowed"], f"{promise['field']} is {kind}")


def _kind_of(value: Json) -> str:
    for kind, name in zip((type(None), bool, int | float, str, list), _KINDS, strict=False):
        if isinstance(value, kind):
            return name
    return "object"


class _Rule(msgspec.Struct, frozen=True):
    fields: tuple[str, ...]
    check: Callable[[Json, Json], None]


_RULES = {
    "set_member": _Rule(("field", "set"), _set_member),
    "range": _Rule(("field",), _range),
    "field_length_eq": _Rule(("left_field", "right_field"), _same_length),
    "field_length_max": _Rule(("subject_field", "bound_field"), _not_longer),
    "subset_of": _Rule(("subject_field", "super_field"), _subset),
    "equals": _Rule(("left_field", "right_field"), _equal),
    "field_type_in": _Rule(("field", "allowed"), _kind_allowed),
}
