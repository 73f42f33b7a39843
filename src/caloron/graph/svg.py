"""Draws a graph as an SVG: time runs downwards, what happens at once stands side by side."""

from __future__ import annotations

from html import escape

import msgspec

from caloron.graph.catalogue import Catalogue
from caloron.graph.draw import labels, rows
from caloron.graph.nodes import Const, Graph, Node, RemoteStage, Stage

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
    """A node with its place: first its size is known, then where it stands."""

    lines: list[str]
    fill: str
    width: float = 0
    height: float = 0
    rows: list[list[_Box]] = msgspec.field(default_factory=list)

    @property
    def head(self) -> float:
        return len(self.lines) * _LINE + _PAD


def svg_of(graph: Graph, catalogue: Catalogue) -> str:
    """The whole picture."""
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
    wide = [sum(one.width for one in row) + _GAP * (len(row) - 1) for row in box.rows]
    high = [max(one.height for one in row) for row in box.rows]
    text = max(len(line) for line in lines) * _LETTER
    box.width = max([text, *wide]) + 2 * _PAD
    box.height = box.head + sum(high) + _ARROW * max(len(high) - 1, 0) + (_PAD if high else 0)
    return box


def _draw(box: _Box, x: float, y: float, parts: list[str]) -> None:
    """A frame with its words, what is in it row by row, and arrows from row to row."""
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
        wide = sum(one.width for one in row) + _GAP * (len(row) - 1)
        left = middle - wide / 2
        for one in row:
            _draw(one, left, top, parts)
            left += one.width + _GAP
        top += max(one.height for one in row)


def _visible(text: str) -> str:
    """XML has no place for control characters."""
    return "".join(c if c.isprintable() else "�" for c in text)
