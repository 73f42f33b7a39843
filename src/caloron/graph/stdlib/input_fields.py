"""Reads the fields of an input, or fails with the name of what is missing."""

from __future__ import annotations

from typing import TypeVar

from caloron.graph.errors import StageFailed
from caloron.graph.json_text import Json
from caloron.graph.types import json_kind

T = TypeVar("T")


def field(input: Json, name: str) -> Json:
    """A field that must be there."""
    if not isinstance(input, dict) or name not in input:
        raise StageFailed(f"the field `{name}` is missing")
    return input[name]


def text(input: Json, name: str | None = None) -> str:
    """A text: the input itself, or a field of it."""
    return _of(str, "a text", input, name)


def items(input: Json, name: str | None = None) -> list[Json]:
    """A list: the input itself, or a field of it."""
    return _of(list, "a list", input, name)


def mapping(input: Json, name: str | None = None) -> dict[str, Json]:
    """An object: the input itself, or a field of it."""
    return _of(dict, "an object", input, name)


def _of(kind: type[T], wanted: str, input: Json, name: str | None) -> T:
    value = input if name is None else field(input, name)
    if not isinstance(value, kind):
        where = "the input" if name is None else f"the field `{name}`"
        raise StageFailed(f"{where} must be {wanted}, not {json_kind(value)}")
    return value


def number(input: Json, name: str | None = None) -> int | float:
    """A number: the input itself, or a field of it."""
    value = input if name is None else field(input, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise StageFailed(f"expected a number, found {json_kind(value)}")
    return value


def optional(input: Json, name: str) -> Json:
    """A field that may be absent or null."""
    return input.get(name) if isinstance(input, dict) else None
