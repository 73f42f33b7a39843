"""Parse the text of a graph; every error names the JSON path."""

from __future__ import annotations

from collections.abc import Callable

from caloron.graph.errors import ParseError
from caloron.graph.json_text import DuplicateKeys, Json, compact, decode, member
from caloron.graph.nodes import (
    OPS,
    ROOT,
    Branch,
    Const,
    Fanout,
    Graph,
    Let,
    Merge,
    Node,
    Parallel,
    RemoteStage,
    Retry,
    Sequential,
    Stage,
)
from caloron.graph.type_syntax import parse_type
from caloron.graph.types import json_kind

_ATTEMPTS = range(2**32)
_DELAYS = range(2**64)
_OPS = ", ".join(op.__name__ for op in OPS)


def parse_graph(text: str | bytes, *, strict: bool = True) -> Graph:
    """Return the graph that a JSON text describes.

    Without `strict`, unknown and repeated fields are ignored, and integers beyond 64 bits are read
    as floats.
    """
    value = decode(text, allow_bigint=not strict, what="the graph")
    if strict:
        _refuse_repeated(value, "$")
    return _Reader(strict).graph(value)


def _refuse_repeated(value: Json, path: str) -> None:
    if isinstance(value, DuplicateKeys):
        raise ParseError(f"given more than once: {', '.join(value.duplicates)}", path=path)
    if isinstance(value, dict):
        for key, child in value.items():
            if isinstance(child, dict | list):
                _refuse_repeated(child, member(path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            if isinstance(child, dict | list):
                _refuse_repeated(child, f"{path}[{index}]")


class _Reader:
    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self._ops: dict[str, Callable[[_Fields], Node]] = {
            "Stage": self._stage,
            "RemoteStage": lambda at: RemoteStage(
                at.text("url"),
                parse_type(at.any("input"), f"{at.path}.input"),
                parse_type(at.any("output"), f"{at.path}.output"),
            ),
            "Const": lambda at: Const(at.any("value")),
            "Sequential": lambda at: Sequential(self._nodes(at, "stages")),
            "Parallel": lambda at: Parallel(self._named(at, "branches")),
            "Branch": lambda at: Branch(
                *(self._node_at(at, name) for name in ("predicate", "if_true", "if_false"))
            ),
            "Fanout": lambda at: Fanout(self._node_at(at, "source"), self._nodes(at, "targets")),
            "Merge": lambda at: Merge(self._nodes(at, "sources"), self._node_at(at, "target")),
            "Retry": self._retry,
            "Let": lambda at: Let(self._named(at, "bindings"), self._node_at(at, "body")),
        }

    def graph(self, value: Json) -> Graph:
        at = self._fields(value, "$", "a graph")
        description, version = at.text("description"), at.text("version")
        graph = Graph(description, version, self._node(at.any("root"), ROOT))
        at.any("ui", None)
        self._refuse_unknown(at)
        return graph

    def _node(self, value: Json, path: str) -> Node:
        at = self._fields(value, path, "a node")
        op = at.text("op")
        if op not in self._ops:
            raise ParseError(f"unknown op {compact(op)}; the ops are {_OPS}", path=f"{path}.op")
        node = self._ops[op](at)
        self._refuse_unknown(at)
        return node

    def _fields(self, value: Json, path: str, what: str) -> _Fields:
        if not isinstance(value, dict):
            raise ParseError(f"{what} is an object, not {json_kind(value)}", path=path)
        return _Fields(value, path)

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

    def _node_at(self, at: _Fields, name: str) -> Node:
        return self._node(at.any(name), f"{at.path}.{name}")

    def _nodes(self, at: _Fields, name: str) -> tuple[Node, ...]:
        value, path = at.any(name), f"{at.path}.{name}"
        if not isinstance(value, list):
            raise ParseError(f"expected an array of nodes, found {json_kind(value)}", path=path)
        return tuple(self._node(one, f"{path}[{index}]") for index, one in enumerate(value))

    def _named(self, at: _Fields, name: str) -> dict[str, Node]:
        value, path = at.any(name), f"{at.path}.{name}"
        if not isinstance(value, dict):
            raise ParseError(f"expected an object of nodes, found {json_kind(value)}", path=path)
        return {key: self._node(value[key], member(path, key)) for key in sorted(value)}

    def _stage(self, at: _Fields) -> Node:
        pinning = at.text("pinning", "signature")
        if pinning not in ("signature", "both"):
            raise ParseError(
                f"pinning is `signature` or `both`, not {compact(pinning)}",
                path=f"{at.path}.pinning",
            )
        config = at.any("config", None)
        if config is not None and not isinstance(config, dict):
            raise ParseError(
                f"config is an object, not {json_kind(config)}", path=f"{at.path}.config"
            )
        ordered = None if config is None else {key: config[key] for key in sorted(config)}
        return Stage(at.text("id"), "both" if pinning == "both" else "signature", ordered)

    def _retry(self, at: _Fields) -> Node:
        inner = self._node_at(at, "stage")
        attempts = at.number("max_attempts", _ATTEMPTS)
        assert attempts is not None
        return Retry(inner, attempts, at.number("delay_ms", _DELAYS, optional=True))


_REQUIRED = object()


class _Fields:
    """The fields of one object, which remembers those that were asked for."""

    def __init__(self, value: dict[str, Json], path: str) -> None:
        self.value = value
        self.path = path
        self.read: set[str] = set()

    def any(self, name: str, default: Json = _REQUIRED) -> Json:
        self.read.add(name)
        found = self.value.get(name, default)
        if found is _REQUIRED:
            raise ParseError(f"the field `{name}` is missing", path=self.path)
        return found

    def text(self, name: str, default: Json = _REQUIRED) -> str:
        found = self.any(name, default)
        if not isinstance(found, str):
            raise ParseError(
                f"expected a text, found {json_kind(found)}", path=f"{self.path}.{name}"
            )
        return found

    def number(self, name: str, allowed: range, *, optional: bool = False) -> int | None:
        found = self.any(name, None) if optional else self.any(name)
        if found is None and optional:
            return None
        if isinstance(found, bool) or not isinstance(found, int) or found not in allowed:
            shown = compact(found) if isinstance(found, int | float) else json_kind(found)
            raise ParseError(
                f"expected a whole number from 0 to {allowed[-1]}, found {shown}",
                path=f"{self.path}.{name}",
            )
        return found
