"""Types from their canonical JSON; every refusal names the JSON path."""

from __future__ import annotations

from caloron.graph.errors import ParseError
from caloron.graph.jsontext import Json, compact, member
from caloron.graph.types import (
    PRIMITIVES,
    TYPE_ORDER,
    ListOf,
    MapOf,
    NonEmpty,
    NType,
    OneOf,
    Primitive,
    Range,
    RecordWith,
    Refined,
    Refinement,
    StreamOf,
    Union,
    Var,
    json_kind,
    sorted_record,
)


def parse_type(value: Json, path: str = "$") -> NType:
    """A type from its canonical JSON."""
    kind = _kind(value, path)
    if kind in PRIMITIVES:
        if value.get("value") is not None:
            raise ParseError(f"{kind} takes no value", path=path)
        return Primitive(kind)
    if "value" not in value:
        raise ParseError(f"{kind} needs the field `value`", path=path)
    return _parse_parts(kind, value["value"], f"{path}.value")


def _kind(value: Json, path: str) -> str:
    if not isinstance(value, dict):
        raise ParseError(
            f'a type is an object such as {{"kind":"Text"}}, not {json_kind(value)}', path=path
        )
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in TYPE_ORDER:
        found = compact(kind) if "kind" in value else "none"
        raise ParseError(f"unknown kind of type {found}; known: {', '.join(TYPE_ORDER)}", path=path)
    return kind


def _parse_parts(kind: str, parts: Json, path: str) -> NType:
    match kind:
        case "List":
            return ListOf(parse_type(parts, path))
        case "Stream":
            return StreamOf(parse_type(parts, path))
        case "Map":
            key, item = (part(parts, name, path) for name in ("key", "value"))
            return MapOf(parse_type(key, f"{path}.key"), parse_type(item, f"{path}.value"))
        case "Record":
            return sorted_record(_parse_fields(parts, path))
        case "RecordWith":
            fields = _parse_fields(part(parts, "fields", path), f"{path}.fields")
            return RecordWith(
                sorted_record(fields).fields, _text(part(parts, "rest", path), f"{path}.rest")
            )
        case "Union":
            if not isinstance(parts, list):
                raise ParseError(
                    f"Union takes an array of types, not {json_kind(parts)}", path=path
                )
            return Union(tuple(parse_type(one, f"{path}[{i}]") for i, one in enumerate(parts)))
        case "Var":
            return Var(_text(parts, path))
        case _:
            base = parse_type(part(parts, "base", path), f"{path}.base")
            return Refined(base, _parse_refinement(part(parts, "refinement", path), path))


def part(value: Json, name: str, path: str) -> Json:
    """A field that must be there."""
    if not isinstance(value, dict) or name not in value:
        raise ParseError(f"the field `{name}` is missing", path=path)
    return value[name]


def _parse_fields(value: Json, path: str) -> dict[str, NType]:
    if not isinstance(value, dict):
        raise ParseError(f"fields are an object of types, not {json_kind(value)}", path=path)
    return {name: parse_type(of, member(path, name)) for name, of in value.items()}


def _parse_refinement(value: Json, outer: str) -> Refinement:
    path = f"{outer}.refinement"
    kind = part(value, "kind", path)
    if kind == "Range":
        return Range(_bound(value, "min", path), _bound(value, "max", path))
    if kind == "OneOf":
        options = part(value, "options", path)
        if not isinstance(options, list):
            raise ParseError(f"options are an array, not {json_kind(options)}", path=path)
        return OneOf(tuple(options))
    if kind == "NonEmpty":
        return NonEmpty()
    raise ParseError(
        f"unknown refinement {compact(kind)}; known: Range, OneOf, NonEmpty", path=path
    )


def _bound(value: Json, name: str, path: str) -> float | None:
    bound = value.get(name)
    if bound is None:
        return None
    if isinstance(bound, bool) or not isinstance(bound, int | float):
        raise ParseError(f"a bound is a number, not {json_kind(bound)}", path=f"{path}.{name}")
    return float(bound)


def _text(value: Json, path: str) -> str:
    if not isinstance(value, str):
        raise ParseError(f"expected a text, found {json_kind(value)}", path=path)
    return value
