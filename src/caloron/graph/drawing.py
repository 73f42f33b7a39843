"""Draws a graph as a tree of text or as an SVG picture."""

from __future__ import annotations

from html import escape

import msgspec

from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import UnknownStage
from caloron.graph.json_text import compact
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
from caloron.graph.stage import StageSpec
from caloron.graph.types import NType, show

_LONGEST_VALUE = 40
_LONGEST_TYPE = 60

#: Nodes side by side, each with its label.
Row = list[tuple[str, Node]]


def rows(node: Node) -> list[Row]:
    """Return the nodes within a node in the order of execution, row by row."""
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
    """Return the lines of a node: its name, then its types or its parameters."""
    match node:
        case Stage(id, _, config):
            fields = f" with {', '.join(config)}" if config else ""
            try:
                stage = catalogue.lookup(id).stage
            except UnknownStage as error:
                return [f"{id}{fields}", error.reason.removeprefix("stage reference: ")]
            return [f"{stage.name or stage.id[:12]}{fields}", _signature(stage)]
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
    """Draw a graph as an indented tree."""
    lines = [graph.description]
    waiting: list[tuple[str, str, str, Node]] = [("", "", "", graph.root)]
    while waiting:
        indent, branch, word, node = waiting.pop()
        text = "  ".join(filter(None, [word, *labels(node, catalogue)]))
        lines.append(f"{indent}{branch}{text}")
        inner = indent + {"├─ ": "│  ", "└─ ": "   "}.get(branch, "")
        within = [child for row in rows(node) for child in row]
        for index, (name, child) in reversed(list(enumerate(within))):
            last = index == len(within) - 1
            waiting.append((inner, "└─ " if last else "├─ ", name, child))
    return "\n".join(lines)


_LETTER = 6.7
_LINE = 16
_PAD = 10
_GAP = 14
_ARROW = 22
_FILL = {Stage: "#eef4ff", RemoteStage: "#fff3e0", Const: "#f2f2f2"}

_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" \
viewBox="0 0 {width:g} {height:g}" font-family="ui-monospace, monospace" font-size="11">
<title>{title}</title>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" \
orient="auto"><path d="M0 0 8 4 0 8z" fill="#555"/></marker></defs>
<rect width="100%" height="100%" fill="#fff"/>
"""


class _Box(msgspec.Struct):
    """A node and its size."""

    lines: list[str]
    fill: str
    width: float = 0
    height: float = 0
    rows: list[list[_Box]] = msgspec.field(default_factory=list)

    @property
    def head(self) -> float:
        return len(self.lines) * _LINE + _PAD


def svg_of(graph: Graph, catalogue: Catalogue) -> str:
    """Draw a graph as an SVG picture."""
    root = _measured(graph.root, "", catalogue)
    width, height = root.width + 2 * _PAD, root.height + 2 * _PAD
    parts = [_HEAD.format(width=width, height=height, title=escape(_visible(graph.description)))]
    _draw(root, _PAD, _PAD, parts)
    return "".join([*parts, "</svg>\n"])


def _measured(node: Node, word: str, catalogue: Catalogue) -> _Box:
    lines = labels(node, catalogue)
    if word:
        lines = [word, *lines]
    box = _Box(lines, _FILL.get(type(node), "none"))
    box.rows = [
        [_measured(child, name, catalogue) for name, child in row] for row in rows(node) if row
    ]
    wide = [sum(child.width for child in row) + _GAP * (len(row) - 1) for row in box.rows]
    high = [max(child.height for child in row) for row in box.rows]
    text = max(len(line) for line in lines) * _LETTER
    box.width = max([text, *wide]) + 2 * _PAD
    box.height = box.head + sum(high) + _ARROW * max(len(high) - 1, 0) + (_PAD if high else 0)
    return box


def _draw(box: _Box, x: float, y: float, parts: list[str]) -> None:
    """Draw a frame with its text, its rows, and arrows from row to row."""
    parts.append(
        f'<rect x="{x:g}" y="{y:g}" width="{box.width:g}" height="{box.height:g}" rx="5" '
        f'fill="{box.fill}" stroke="#8a94a6"/>\n'
    )
    for number, line in enumerate(box.lines):
        place = f'x="{x + _PAD:g}" y="{y + _PAD + number * _LINE + 6:g}"'
        parts.append(f"<text {place}>{escape(_visible(line))}</text>\n")
    top, middle = y + box.head, x + box.width / 2
    for number, row in enumerate(box.rows):
        if number:
            line = f'x1="{middle:g}" y1="{top:g}" x2="{middle:g}" y2="{top + _ARROW:g}"'
            parts.append(f'<line {line} stroke="#555" marker-end="url(#tip)"/>\n')
            top += _ARROW
        wide = sum(child.width for child in row) + _GAP * (len(row) - 1)
        left = middle - wide / 2
        for child in row:
            _draw(child, left, top, parts)
            left += child.width + _GAP
        top += max(child.height for child in row)


def _visible(text: str) -> str:
    """Replace control characters, which XML does not allow."""
    return "".join(c if c.isprintable() else "�" for c in text)
