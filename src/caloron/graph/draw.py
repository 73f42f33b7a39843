"""Draws a graph as lines of text: who feeds whom, and with which types."""

from __future__ import annotations

from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import UnknownStage
from caloron.graph.jsontext import compact
from caloron.graph.nodes import (
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
from caloron.graph.resolve import lookup
from caloron.graph.spec import StageSpec
from caloron.graph.types import NType, show

_LONGEST_VALUE = 40
_LONGEST_TYPE = 60

#: What stands side by side, each with the word for what it is to its node.
Row = list[tuple[str, Node]]


def rows(node: Node) -> list[Row]:
    """What a node holds, in the order in which it happens: rows follow each other."""
    match node:
        case Sequential(stages):
            return [[("", stage)] for stage in stages]
        case Parallel(branches):
            return [list(branches.items())]
        case Branch(predicate, if_true, if_false):
            return [[("if", predicate)], [("then", if_true), ("else", if_false)]]
        case Fanout(source, targets):
            return [[("source", source)], [("", target) for target in targets]]
        case Merge(sources, target):
            named = [(f"source_{index}", source) for index, source in enumerate(sources)]
            return [named, [("target", target)]]
        case Retry(stage):
            return [[("", stage)]]
        case Let(bindings, body):
            return [[(f"{name} =", bound) for name, bound in bindings.items()], [("in", body)]]
    return []


def labels(node: Node, catalogue: Catalogue) -> list[str]:
    """What is written on a node: its name, then its types or what else there is to know."""
    match node:
        case Stage(id, _, config):
            given = f" with {', '.join(config)}" if config else ""
            try:
                stage = lookup(id, catalogue)
            except UnknownStage as error:
                return [f"{id}{given}", error.reason.removeprefix("stage reference: ")]
            return [f"{stage.name or stage.id[:12]}{given}", _signature(stage)]
        case RemoteStage(url, input, output):
            return [url, f"{_type(input)} → {_type(output)}"]
        case Const(value):
            return [f"Const {_cut(compact(value), _LONGEST_VALUE)}"]
        case Retry(_, attempts, delay):
            waits = f", {delay} ms apart" if delay else ""
            return [f"Retry, {attempts} attempts{waits}"]
    return [type(node).__name__]


def _signature(stage: StageSpec) -> str:
    words = [effect.word for effect in stage.effects if effect.word != "pure"]
    effects = f"  [{', '.join(words)}]" if words else ""
    return f"{_type(stage.input)} → {_type(stage.output)}{effects}"


def _type(of: NType) -> str:
    return _cut(show(of), _LONGEST_TYPE)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def text_of(graph: Graph, catalogue: Catalogue) -> str:
    """The whole graph as an indented tree."""
    lines = [graph.description]
    waiting: list[tuple[str, str, str, Node]] = [("", "", "", graph.root)]
    while waiting:
        before, turn, word, node = waiting.pop()
        said = "  ".join([word, *labels(node, catalogue)] if word else labels(node, catalogue))
        lines.append(f"{before}{turn}{said}")
        inner = before + {"├─ ": "│  ", "└─ ": "   "}.get(turn, "")
        within = [each for row in rows(node) for each in row]
        for index, (name, child) in reversed(list(enumerate(within))):
            last = index == len(within) - 1
            waiting.append((inner, "└─ " if last else "├─ ", name, child))
    return "\n".join(lines)
