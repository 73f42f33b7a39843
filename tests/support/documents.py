"""The project's Markdown: its blocks, commands, links and headings."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>\w*)[^\n]*$")
_NOT_RUN = re.compile(r"^ *<!-- not run: (?P<reason>.+) -->$")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block; `not_run` is the reason in a comment above it why no test runs it."""

    language: str
    text: str
    line: int
    not_run: str = ""


def pages() -> list[Path]:
    """The pages at the top of the repository, and every page of the documentation."""
    return [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, without the indentation that a list gives them."""
    opened: re.Match[str] | None = None
    block_lines: list[str] = []
    first, above, reason = 0, "", ""
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is None and fence:
            opened, block_lines, first = fence, [], number + 1
            comment = _NOT_RUN.match(above)
            reason = comment["reason"] if comment else ""
        elif opened and fence and fence["fence"] == opened["fence"] and not fence["language"]:
            content = textwrap.dedent("\n".join(block_lines)) + "\n"
            yield Block(opened["language"], content, first, reason)
            opened = None
        else:
            block_lines.append(line)
        above = line
    assert opened is None, f"a block that begins in line {first - 1} never ends"


def sections(text: str) -> dict[str, list[Block]]:
    """The fenced blocks by the last heading of level two above them."""
    plain = prose(text).splitlines()
    found: dict[str, list[Block]] = {}
    for block in blocks(text):
        above = [line[3:] for line in plain[: block.line] if line.startswith("## ")]
        found.setdefault(above[-1] if above else "", []).append(block)
    return found


def prose(text: str) -> str:
    """A page without its fenced blocks; the lines keep their numbers."""
    lines = text.splitlines()
    for block in blocks(text):
        for number in range(block.line - 1, block.line + block.text.count("\n")):
            if number - 1 < len(lines):
                lines[number - 1] = ""
    return "\n".join(lines)


def spans(text: str) -> Iterator[tuple[int, str]]:
    """Yield the inline code of a page with its line number; a table's `\\|` is a `|`."""
    for number, line in enumerate(prose(text).splitlines(), 1):
        for span in _SPAN.finditer(line):
            yield number, span[1].replace("\\|", "|")


def links(text: str) -> Iterator[str]:
    """Yield the targets of the links and pictures of a page."""
    for link in _LINK.finditer(_SPAN.sub("", prose(text))):
        yield link[1]


def anchors(text: str) -> set[str]:
    """The names by which the headings of a page are reached."""
    headings = (re.sub(r"[^\w\- ]", "", h[1].lower()) for h in _HEADING.finditer(prose(text)))
    return {re.sub(r"[- ]+", "-", heading.strip()) for heading in headings}


def shell_lines(text: str) -> Iterator[tuple[int, str]]:
    """Each line in the blocks of a page that a reader may type into a shell, with its number."""
    for block in blocks(text):
        for number, line in enumerate(block.text.replace("\\\n", " ").splitlines(), block.line):
            typed = line.lstrip()
            if typed.startswith("$ "):
                yield number, typed[2:]
            elif block.language == "sh":
                yield number, typed
