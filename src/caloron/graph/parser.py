"""Parse the text of a graph; every error names the JSON path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from caloron.graph.errors import ParseError
from caloron.graph.json_text import DuplicateKeys, Json, compact, decode, member, walk_json
from caloron.graph.nodes import OPS, ROOT, Const, Graph, Node, RemoteStage, Retry, Stage
from caloron.graph.type_syntax import parse_type
from caloron.graph.types import json_kind

_ATTEMPTS = range(2**32)
_DELAYS = range(2**64)
_OPS = {op.__name__: op for op in OPS}


def parse_graph(text: str | bytes, *, strict: bool = True) -> Graph:
    """Return the graph that a JSON text describes.

    Without `strict`, unknown and repeated fields are ignored, and integers beyond 64 bits are read
    as floats.
    """
    value = decode(text, allow_bigint=not strict, what="the graph")
    if strict:
        for path, part in walk_json(value):
            if isinstance(part, DuplicateKeys):
                raise ParseError(f"given more than once: {', '.join(part.duplicates)}", path=path)
    return _Reader(strict).graph(value)


class _Reader:
    def __init__(self, strict: bool) -> None:
        self._strict = strict

    def graph(self, value: Json) -> Graph:
        at = _fields(value, "$", "a graph")
        description, version = at.text("description"), at.text("version")
        graph = Graph(description, version, self._node(at.any("root"), ROOT))
        at.any("ui", None)
        self._refuse_unknown(at)
        return graph

    def _node(self, value: Json, path: str) -> Node:
        at = _fields(value, path, "a node")
        name = at.text("op")
        if name not in _OPS:
            raise ParseError(
                f"unknown op {compact(name)}; the ops are {', '.join(_OPS)}", path=f"{path}.op"
            )
        op = _OPS[name]
        read: dict[str, Callable[[Json, str], Any]] = {
            "one": self._node,
            "list": self._list,
            "named": self._named,
        }
        fields: dict[str, Any] = {
            field: read[kind](at.any(field), f"{path}.{field}") for field, kind in OPS[op].items()
        }
        if op in _OTHER_FIELDS:
            fields |= _OTHER_FIELDS[op](at)
        self._refuse_unknown(at)
        return op(**fields)

    def _list(self, value: Json, path: str) -> tuple[Node, ...]:
        if not isinstance(value, list):
            raise ParseError(f"expected an array of nodes, found {json_kind(value)}", path=path)
        return tuple(self._node(item, f"{path}[{index}]") for index, item in enumerate(value))

    def _named(self, value: Json, path: str) -> dict[str, Node]:
        if not isinstance(value, dict):
            raise ParseError(f"expected an object of nodes, found {json_kind(value)}", path=path)
        return {key: self._node(value[key], member(path, key)) for key in sorted(value)}

    def _refuse_unknown(self, at: _Fields) -> None:
        if isinstance(at.value, DuplicateKeys):
            doubled = [key for key in at.value.duplicates if key in at.read]
            if doubled:
                raise ParseError(f"given more than once: {', '.join(doubled)}", path=at.path)
        if self._strict:
            unknown = [k for k in at.value if k not in at.read and not k.startswith(("_", "$"))]
            if unknown:
                known = ", ".join(sorted(at.read))
                raise ParseError(
                    f"unknown field {', '.join(unknown)}; known here: {known} "
                    "(a remark starts with an underscore)",
                    path=at.path,
                )


def _stage_fields(at: _Fields) -> dict[str, Any]:
    pinning = at.text("pinning", "signature")
    if pinning not in ("signature", "both"):
        raise ParseError(
            f"pinning is `signature` or `both`, not {compact(pinning)}", path=f"{at.path}.pinning"
        )
    config = at.any("config", None)
    if config is not None:
        if not isinstance(config, dict):
            raise ParseError(
                f"config is an object, not {json_kind(config)}", path=f"{at.path}.config"
            )
        config = {key: config[key] for key in sorted(config)}
    return {"id": at.text("id"), "pinning": pinning, "config": config}


#: How the fields that contain no nodes are read.
_OTHER_FIELDS: dict[type[Node], Callable[[_Fields], dict[str, Any]]] = {
    Stage: _stage_fields,
    RemoteStage: lambda at: {
        "url": at.text("url"),
        "input": parse_type(at.any("input"), f"{at.path}.input"),
        "output": parse_type(at.any("output"), f"{at.path}.output"),
    },
    Const: lambda at: {"value": at.any("value")},
    Retry: lambda at: {
        "max_attempts": at.number("max_attempts", _ATTEMPTS),
        "delay_ms": at.number("delay_ms", _DELAYS, optional=True),
    },
}
_REQUIRED = object()


class _Fields:
    """The fields of one object, and the names that were read."""

    def __init__(self, value: dict[str, Json], path: str) -> None:
        self.value = value
        self.path: str = path
        self.read: set[str] = set()

    def any(self, name: str, default: Json = _REQUIRED) -> Json:
        self.read.add(name)
        value = self.value.get(name, default)
        if value is _REQUIRED:
            raise ParseError(f"the field `{name}` is missing", path=self.path)
        return value

    def text(self, name: str, default: Json = _REQUIRED) -> str:
        value = self.any(name, default)
        if not isinstance(value, str):
            raise ParseError(
                f"expected a text, found {json_kind(value)}", path=f"{self.path}.{name}"
            )
        return value

    def number(self, name: str, allowed: range, *, optional: bool = False) -> int | None:
        value = self.any(name, None) if optional else self.any(name)
        if value is None and optional:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value not in allowed:
            shown = compact(value) if isinstance(value, int | float) else json_kind(value)
            raise ParseError(
                f"expected a whole number from 0 to {allowed[-1]}, found {shown}",
                path=f"{self.path}.{name}",
            )
        return value


def _fields(value: Json, path: str, what: str) -> _Fields:
    if not isinstance(value, dict):
        raise ParseError(f"{what} is an object, not {json_kind(value)}", path=path)
    return _Fields(value, path)
