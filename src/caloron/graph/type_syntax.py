"""Types from JSON: the canonical form, and the shorthand that stage authors write.

`{"kind": "List", "value": {"kind": "Text"}}` is canonical, `{"List": "Text"}` is shorthand. Every
error names the JSON path.
"""

from __future__ import annotations

from caloron.graph.errors import ParseError
from caloron.graph.json_text import Json, compact, member
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

_SHORT = ("List", "Stream", "Map", "Record", "Union")


def parse_type(value: Json, path: str = "$") -> NType:
    """Parse a type in canonical JSON."""
    return _Parser(shorthand=False).parse(value, path)


def parse_shorthand(value: Json, path: str = "$") -> NType:
    """Parse a type in either form; parts in both forms may be mixed."""
    return _Parser(shorthand=True).parse(value, path)


class _Parser:
    def __init__(self, *, shorthand: bool) -> None:
        self._shorthand = shorthand

    def parse(self, value: Json, path: str) -> NType:
        if self._shorthand and isinstance(value, str):
            if value not in PRIMITIVES:
                known = ", ".join(PRIMITIVES)
                raise ParseError(f'unknown type "{value}"; as a word only: {known}', path=path)
            return Primitive(value)
        if not isinstance(value, dict):
            raise ParseError(
                f"a type is a word or an object, not {json_kind(value)}"
                if self._shorthand
                else f'a type is an object such as {{"kind":"Text"}}, not {json_kind(value)}',
                path=path,
            )
        if not self._shorthand or "kind" in value:
            return self._canonical(value, path)
        if len(value) == 1:
            ((word, parts),) = value.items()
            if word in _SHORT:
                return self._short(word, parts, f"{path}.{word}")
        raise ParseError(
            f"neither a canonical type (with `kind`) nor one of {', '.join(_SHORT)}", path=path
        )

    def _short(self, word: str, parts: Json, path: str) -> NType:
        if word == "Record":
            fields = enumerate(_array(parts, word, path))
            return sorted_record(dict(self._field(field, f"{path}[{i}]") for i, field in fields))
        if word != "Map":
            return self._constructed(word, parts, path)
        types = self._types(parts, word, path)
        if len(types) != 2:
            raise ParseError(
                f"Map takes a key type and a value type, not {len(types)} types", path=path
            )
        return MapOf(*types)

    def _field(self, value: Json, path: str) -> tuple[str, NType]:
        if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str):
            raise ParseError('a field is written ["name", type]', path=path)
        return value[0], self.parse(value[1], f"{path}[1]")

    def _canonical(self, value: dict[str, Json], path: str) -> NType:
        kind = value.get("kind")
        if not isinstance(kind, str) or kind not in TYPE_ORDER:
            shown = compact(kind) if "kind" in value else "none"
            raise ParseError(
                f"unknown kind of type {shown}; known: {', '.join(TYPE_ORDER)}", path=path
            )
        if kind in PRIMITIVES:
            if value.get("value") is not None:
                raise ParseError(f"{kind} takes no value", path=path)
            return Primitive(kind)
        return self._constructed(kind, required(value, "value", path), f"{path}.value")

    def _constructed(self, kind: str, parts: Json, path: str) -> NType:
        match kind:
            case "List" | "Stream":
                return (ListOf if kind == "List" else StreamOf)(self.parse(parts, path))
            case "Map":
                return MapOf(*(self._part(parts, name, path) for name in ("key", "value")))
            case "Record":
                return sorted_record(self._fields(parts, path))
            case "RecordWith":
                fields = self._fields(required(parts, "fields", path), f"{path}.fields")
                rest = _text(required(parts, "rest", path), f"{path}.rest")
                return RecordWith(sorted_record(fields).fields, rest)
            case "Union":
                return Union(tuple(self._types(parts, kind, path)))
            case "Var":
                return Var(_text(parts, path))
        refinement = required(parts, "refinement", path)
        base = self._part(parts, "base", path)
        return Refined(base, _refinement(refinement, f"{path}.refinement"))

    def _part(self, parts: Json, name: str, path: str) -> NType:
        return self.parse(required(parts, name, path), f"{path}.{name}")

    def _types(self, parts: Json, kind: str, path: str) -> list[NType]:
        return [self.parse(of, f"{path}[{i}]") for i, of in enumerate(_array(parts, kind, path))]

    def _fields(self, value: Json, path: str) -> dict[str, NType]:
        if not isinstance(value, dict):
            raise ParseError(f"fields are an object of types, not {json_kind(value)}", path=path)
        return {name: self.parse(of, member(path, name)) for name, of in value.items()}


def _array(value: Json, kind: str, path: str) -> list[Json]:
    if not isinstance(value, list):
        raise ParseError(f"{kind} takes an array, not {json_kind(value)}", path=path)
    return value


def required(value: Json, name: str, path: str) -> Json:
    """Return a field that must exist."""
    if not isinstance(value, dict) or name not in value:
        raise ParseError(f"the field `{name}` is missing", path=path)
    return value[name]


def _refinement(value: Json, path: str) -> Refinement:
    kind = required(value, "kind", path)
    if kind == "Range":
        return Range(_bound(value, "min", path), _bound(value, "max", path))
    if kind == "OneOf":
        options = required(value, "options", path)
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
