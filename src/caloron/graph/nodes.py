"""The ten operations of a graph, how to walk over them, and the id of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from caloron.graph.json_text import Json, canonical, member, sha256
from caloron.graph.types import NType, type_json


class Stage(msgspec.Struct, frozen=True):
    """Calls a stage; `config` gives fields of its input in advance."""

    id: str
    pinning: Literal["signature", "both"] = "signature"
    config: Mapping[str, Json] | None = None


class RemoteStage(msgspec.Struct, frozen=True):
    """Calls a stage on another machine; its types are those that the node declares."""

    url: str
    input: NType
    output: NType


class Const(msgspec.Struct, frozen=True):
    """Answers one value, whatever its input."""

    value: Json


class Sequential(msgspec.Struct, frozen=True):
    """Runs nodes one after the other; each gets the answer of the one before."""

    stages: tuple[Node, ...]


class Parallel(msgspec.Struct, frozen=True):
    """Runs all branches at once; the answer is an object keyed by branch."""

    branches: Mapping[str, Node]


class Branch(msgspec.Struct, frozen=True):
    """Runs one of two nodes, as the predicate decides, on the original input."""

    predicate: Node
    if_true: Node
    if_false: Node


class Fanout(msgspec.Struct, frozen=True):
    """Passes the answer of a source to every target; the answer is a list."""

    source: Node
    targets: tuple[Node, ...]


class Merge(msgspec.Struct, frozen=True):
    """Passes the answers of several sources to one target, as one object."""

    sources: tuple[Node, ...]
    target: Node


class Retry(msgspec.Struct, frozen=True):
    """Runs the inner node until it succeeds, up to a number of attempts."""

    stage: Node
    max_attempts: int
    delay_ms: int | None = None


class Let(msgspec.Struct, frozen=True):
    """Names answers: the body gets the outer object with one more field per binding."""

    bindings: Mapping[str, Node]
    body: Node


Node: TypeAlias = (
    Stage | RemoteStage | Const | Sequential | Parallel | Branch | Fanout | Merge | Retry | Let
)
#: The operations, each with the fields that contain nodes: `one` node, a `list` of them, or an
#: object of nodes by name (`named`).
OPS: dict[type[Node], dict[str, Literal["one", "list", "named"]]] = {
    Stage: {},
    RemoteStage: {},
    Const: {},
    Sequential: {"stages": "list"},
    Parallel: {"branches": "named"},
    Branch: {"predicate": "one", "if_true": "one", "if_false": "one"},
    Fanout: {"source": "one", "targets": "list"},
    Merge: {"sources": "list", "target": "one"},
    Retry: {"stage": "one"},
    Let: {"bindings": "named", "body": "one"},
}

ROOT = "$.root"


class Graph(msgspec.Struct, frozen=True):
    """A composition: its purpose, and its outermost node."""

    description: str
    version: str
    root: Node


def children(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """The nodes directly within a node with their paths, in the order of the format."""
    for name in OPS[type(node)]:
        yield from _nodes_in(getattr(node, name), f"{path}.{name}")


def _nodes_in(field: Any, path: str) -> Iterator[tuple[str, Node]]:
    if isinstance(field, tuple):
        return ((f"{path}[{index}]", node) for index, node in enumerate(field))
    if isinstance(field, Mapping):
        return ((member(path, name), node) for name, node in field.items())
    return iter([(path, field)])


def walk(node: Node, path: str = ROOT) -> Iterator[tuple[str, Node]]:
    """A node and all nodes within it, each before its children."""
    waiting = [(path, node)]
    while waiting:
        at, inner = waiting.pop()
        yield at, inner
        waiting.extend(reversed(list(children(inner, at))))


def rebuilt(node: Node, change: Callable[[str, Node], Node], path: str = "") -> Node:
    """The node with each node directly within it changed."""
    changed: dict[str, Any] = {}
    for name in OPS[type(node)]:
        field = getattr(node, name)
        nodes = [change(at, child) for at, child in _nodes_in(field, f"{path}.{name}")]
        if isinstance(field, tuple):
            changed[name] = tuple(nodes)
        elif isinstance(field, Mapping):
            changed[name] = dict(zip(field, nodes, strict=True))
        else:
            (changed[name],) = nodes
    return msgspec.structs.replace(node, **changed)


def node_json(node: Node) -> Json:
    """The node as the format writes it, and as ids hash it."""
    written: dict[str, Json] = {"op": type(node).__name__}
    for name in node.__struct_fields__:
        field = getattr(node, name)
        match OPS[type(node)].get(name):
            case "one":
                field = node_json(field)
            case "list":
                field = [node_json(child) for child in field]
            case "named":
                field = {key: node_json(child) for key, child in field.items()}
        written[name] = field
    if isinstance(node, RemoteStage):
        written.update(input=type_json(node.input), output=type_json(node.output))
    if isinstance(node, Stage):
        if node.pinning == "signature":
            del written["pinning"]
        if node.config is None:
            del written["config"]
    return written


_MAX_ATTEMPTS = 2**32 - 1


def composition_id(graph: Graph) -> str:
    """The id of a graph as written: equal for graphs that differ in form only."""
    return sha256(canonical(node_json(canonicalise(graph.root))))


def canonicalise(node: Node) -> Node:
    """The normal form: sequences flat, retries joined, empty wrappers removed."""
    inner = rebuilt(node, lambda _, child: canonicalise(child))
    match inner:
        case Sequential(stages):
            flat: list[Node] = []
            for stage in stages:
                flat.extend(stage.stages if isinstance(stage, Sequential) else (stage,))
            return flat[0] if len(flat) == 1 else Sequential(tuple(flat))
        case Retry(stage, attempts) if attempts <= 1:
            return stage
        case Retry(Retry(stage, within, same), attempts, delay) if delay == same:
            return Retry(stage, min(within * attempts, _MAX_ATTEMPTS), delay)
        case Let(bindings, body) if not bindings:
            return body
    return inner
