"""One form for graphs that mean the same, and the id that is taken from it."""

from __future__ import annotations

import msgspec

from caloron.graph.jsontext import canonical, sha256
from caloron.graph.nodes import (
    Branch,
    Const,
    Graph,
    Let,
    Node,
    Retry,
    Sequential,
    node_json,
    rebuilt,
)

_MOST_ATTEMPTS = 2**32 - 1
_MOST_ROUNDS = 16


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
            return Retry(stage, min(within * attempts, _MOST_ATTEMPTS), delay)
        case Let(bindings, body) if not bindings:
            return body
    return inner


class Optimised(msgspec.Struct, frozen=True):
    """A tree that does the same with less, and what was done to get there."""

    root: Node
    passes: tuple[str, ...]
    rounds: int
    hit_cap: bool


def optimise(root: Node) -> Optimised:
    """What the planner of 0.8.2 looks at: the normal form without branches never taken."""
    passes: list[str] = []
    for done in range(1, _MOST_ROUNDS + 1):
        before = root
        for name, rewrite in (
            ("canonical_structural", canonicalise),
            ("dead_branch", _without_dead_branches),
        ):
            rewritten = rewrite(root)
            if rewritten != root and name not in passes:
                passes.append(name)
            root = rewritten
        if root == before:
            return Optimised(root, tuple(passes), done, False)
    return Optimised(root, tuple(passes), _MOST_ROUNDS, True)


def _without_dead_branches(node: Node) -> Node:
    inner = rebuilt(node, lambda _, child: _without_dead_branches(child))
    match inner:
        case Branch(Const(bool() as chosen), if_true, if_false):
            return if_true if chosen else if_false
    return inner
