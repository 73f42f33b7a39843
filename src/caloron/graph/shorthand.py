"""Types as authors of stages write them: `"Text"`, `{"List": "Text"}`, or the canonical form."""

from __future__ import annotations

from caloron.graph.errors import ParseError
from caloron.graph.jsontext import Json, member
from caloron.graph.typeparse import parse_type
from caloron.graph.types import (
    PRIMITIVES,
    ListOf,
    MapOf,
    NType,
    Primitive,
    StreamOf,
    Union,
    json_kind,
    sorted_record,
    type_json,
)

_SHORT = ("List", "Stream", "Map", "Record", "Union")


def parse_shorthand(value: Json, path: str = "$", *, as_noether: bool = False) -> NType:
    """A type in either form, mixed freely.

    `as_noether` refuses what `noether stage add` 0.8.2 cannot take: a canonical list or stream
    directly of a primitive that is written as an object.
    """
    if isinstance(value, str):
        if value not in PRIMITIVES:
            known = ", ".join(PRIMITIVES)
            raise ParseError(f'unknown type "{value}"; as a word only: {known}', path=path)
        return Primitive(value)
    if not isinstance(value, dict):
        raise ParseError(f"a type is a word or an object, not {json_kind(value)}", path=path)
    if "kind" in value:
        return parse_type(_spelled_out(value, path, as_noether), path)
    if len(value) == 1:
        ((word, parts),) = value.items()
        if word in _SHORT:
            return _parse_short(word, parts, f"{path}.{word}", as_noether)
    raise ParseError(
        f"neither a canonical type (with `kind`) nor one of {', '.join(_SHORT)}", path=path
    )


def _parse_short(word: str, parts: Json, path: str, as_noether: bool) -> NType:
    if word in ("List", "Stream"):
        item = parse_shorthand(parts, path, as_noether=as_noether)
        return ListOf(item) if word == "List" else StreamOf(item)
    if not isinstance(parts, list):
        raise ParseError(f"{word} takes an array, not {json_kind(parts)}", path=path)
    if word == "Record":
        fields = [_field(one, f"{path}[{i}]", as_noether) for i, one in enumerate(parts)]
        return sorted_record(dict(fields))
    of = [
        parse_shorthand(one, f"{path}[{i}]", as_noether=as_noether) for i, one in enumerate(parts)
    ]
    if word == "Union":
        return Union(tuple(of))
    if len(of) != 2:
        raise ParseError(f"Map takes a key type and a value type, not {len(of)} types", path=path)
    return MapOf(*of)


def _field(value: Json, path: str, as_noether: bool) -> tuple[str, NType]:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str):
        raise ParseError('a field is written ["name", type]', path=path)
    return value[0], parse_shorthand(value[1], f"{path}[1]", as_noether=as_noether)


def _spelled_out(value: Json, path: str, as_noether: bool) -> Json:
    """The canonical JSON of a type whose parts may be shorthand."""
    kind, parts = value["kind"], value.get("value")
    if kind in ("List", "Stream"):
        if as_noether and isinstance(parts, dict) and parts.get("kind") in PRIMITIVES:
            raise ParseError(f"write the element of {kind} as a word", path=f"{path}.value")
        return {"kind": kind, "value": _whole(parts, f"{path}.value", as_noether)}
    if kind == "Map" and isinstance(parts, dict):
        return {
            "kind": kind,
            "value": {
                name: _whole(of, f"{path}.value.{name}", as_noether) for name, of in parts.items()
            },
        }
    if kind == "Record" and isinstance(parts, dict):
        inner = f"{path}.value"
        fields = {n: _whole(of, member(inner, n), as_noether) for n, of in parts.items()}
        return {"kind": kind, "value": fields}
    if kind == "Union" and isinstance(parts, list):
        members = [_whole(of, f"{path}.value[{i}]", as_noether) for i, of in enumerate(parts)]
        return {"kind": kind, "value": members}
    return value


def _whole(value: Json, path: str, as_noether: bool) -> Json:
    return type_json(parse_shorthand(value, path, as_noether=as_noether))
