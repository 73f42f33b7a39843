"""The ten operations of a graph, how to walk over them, and the id of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec

from caloron.graph.json_text import Json, canonical, member, sha256
from caloron.graph.types import NType, type_json


class Stage(msgspec.Struct, frozen=True):
    """Calls a stage; `config` gives fields of its input in advance."""

    id: str
    pinning: Literal["signature", "both"] = "signature"
    config: Mapping[str, Json] | None = None


class RemoteStage(msgspec.Struct, frozen=True):
    """Calls a stage on another machine, whose types are taken on trust."""

    url: str
    input: NType
    output: NType


class Const(msgspec.Struct, frozen=True):
    """Gives one value whatever comes in."""

    value: Json


class Sequential(msgspec.Struct, frozen=True):
    """One after the other, each fed with what the one before gave."""

    stages: tuple[Node, ...]


class Parallel(msgspec.Struct, frozen=True):
    """All at once; the results are an object keyed by branch."""

    branches: Mapping[str, Node]


class Branch(msgspec.Struct, frozen=True):
    """One of two, as the predicate says; the chosen one gets the original input."""

    predicate: Node
    if_true: Node
    if_false: Node


class Fanout(msgspec.Struct, frozen=True):
    """One source, whose result goes to every target; the results are a list."""

    source: Node
    targets: tuple[Node, ...]


class Merge(msgspec.Struct, frozen=True):
    """Several sources, whose results go together into one target."""

    sources: tuple[Node, ...]
    target: Node


class Retry(msgspec.Struct, frozen=True):
    """The inner node again until it succeeds, at most so many times."""

    stage: Node
    max_attempts: int
    delay_ms: int | None = None


class Let(msgspec.Struct, frozen=True):
    """Names for results: the body gets the outer object with one more field per binding."""

    bindings: Mapping[str, Node]
    body: Node


Node: TypeAlias = (
    Stage | RemoteStage | Const | Sequential | Parallel | Branch | Fanout | Merge | Retry | Let
)
OPS: tuple[type[Node], ...] = (
    Stage,
    RemoteStage,
    Const,
    Sequential,
    Parallel,
    Branch,
    Fanout,
    Merge,
    Retry,
    Let,
)

ROOT = "$.root"


class Graph(msgspec.Struct, frozen=True):
    """A composition: what it is for, and the node that does it."""

    description: str
    version: str
    root: Node


def children(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """The nodes directly within a node with their paths, in the order of the format."""
    match node:
        case Sequential(stages):
            yield from _listed(stages, f"{path}.stages")
        case Parallel(branches):
            yield from _named(branches, f"{path}.branches")
        case Branch(predicate, if_true, if_false):
            yield f"{path}.predicate", predicate
            yield f"{path}.if_true", if_true
            yield f"{path}.if_false", if_false
        case Fanout(source, targets):
            yield f"{path}.source", source
            yield from _listed(targets, f"{path}.targets")
        case Merge(sources, target):
            yield from _listed(sources, f"{path}.sources")
            yield f"{path}.target", target
        case Retry(stage):
            yield f"{path}.stage", stage
        case Let(bindings, body):
            yield from _named(bindings, f"{path}.bindings")
            yield f"{path}.body", body


def _listed(nodes: tuple[Node, ...], path: str) -> Iterator[tuple[str, Node]]:
    return ((f"{path}[{index}]", node) for index, node in enumerate(nodes))


def _named(nodes: Mapping[str, Node], path: str) -> Iterator[tuple[str, Node]]:
    return ((member(path, name), node) for name, node in nodes.items())


def walk(node: Node, path: str = ROOT) -> Iterator[tuple[str, Node]]:
    """A node and everything within it, each before what it holds."""
    waiting = [(path, node)]
    while waiting:
        here, one = waiting.pop()
        yield here, one
        waiting.extend(reversed(list(children(one, here))))


def rebuilt(node: Node, change: Callable[[str, Node], Node], path: str = "") -> Node:
    """The node with each node directly within it changed."""
    changed = iter([change(at, child) for at, child in children(node, path)])
    match node:
        case Sequential(stages):
            return Sequential(tuple(changed)) if stages else node
        case Parallel(branches):
            return Parallel(dict(zip(branches, changed, strict=True)))
        case Branch():
            return Branch(*changed)
        case Fanout():
            return Fanout(next(changed), tuple(changed))
        case Merge():
            *sources, target = changed
            return Merge(tuple(sources), target)
        case Retry(_, attempts, delay):
            return Retry(next(changed), attempts, delay)
        case Let(bindings):
            *bound, body = changed
            return Let(dict(zip(bindings, bound, strict=True)), body)
    return node


def node_json(node: Node) -> Json:
    """The node as the format writes it, and as ids hash it."""
    written: dict[str, Json] = {"op": type(node).__name__}
    match node:
        case Stage(id, pinning, config):
            written["id"] = id
            if pinning != "signature":
                written["pinning"] = pinning
            if config is not None:
                written["config"] = dict(config)
        case RemoteStage(url, input, output):
            written.update(url=url, input=type_json(input), output=type_json(output))
        case Const(value):
            written["value"] = value
        case Retry(stage, attempts, delay):
            written.update(stage=node_json(stage), max_attempts=attempts, delay_ms=delay)
        case _:
            for field in node.__struct_fields__:
                written[field] = _within_json(getattr(node, field))
    return written


def _within_json(within: Node | tuple[Node, ...] | Mapping[str, Node]) -> Json:
    if isinstance(within, tuple):
        return [node_json(node) for node in within]
    if isinstance(within, Mapping):
        return {name: node_json(node) for name, node in within.items()}
    return node_json(within)


_MAX_ATTEMPTS = 2**32 - 1


def composition_id(graph: Graph | Node) -> str:
    """The id of a graph as it was authored: equal for graphs that differ in form only."""
    root = graph.root if isinstance(graph, Graph) else graph
    return sha256(canonical(node_json(canonicalise(root))))


def canonicalise(node: Node) -> Node:
    """The normal form: sequences flat, retries joined, wrappers of nothing gone."""
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
