"""A page of a report in three forms: text for a terminal, Markdown, and one HTML file."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from caloron.cli.output import printable
from caloron.cli.screen import aligned, fitted

FORMATS = ("text", "md", "html")


@dataclass(frozen=True)
class Item:
    """One thing to read, with the commands or files that belong to it."""

    text: str
    commands: Sequence[str] = ()
    files: Sequence[str] = ()
    #: What a program printed, line by line.
    printed: Sequence[str] = ()


class Linked(str):
    """A cell that leads to a file or a page, where the form of the page has links."""

    file: str

    def __new__(cls, text: str, file: str) -> Linked:
        made = super().__new__(cls, text)
        made.file = file
        return made


def _address(file: str) -> str:
    """The file as a link; empty for what is neither a whole path nor a page of the web."""
    if file.startswith(("https://", "http://")):
        return file if not set(file) & set(' <>"') else ""
    return Path(file).as_uri() if file.startswith("/") else ""


@dataclass(frozen=True)
class Section:
    heading: str
    items: Sequence[Item] = ()
    #: The first row is the head.
    rows: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class Page:
    title: str
    lead: str = ""
    sections: Sequence[Section] = field(default=())


def render(page: Page, form: str) -> str:
    forms: dict[str, Callable[[Page], str]] = {
        "text": as_text,
        "md": as_markdown,
        "html": as_html,
    }
    return forms[form](page)


def _filled(page: Page) -> list[Section]:
    return [section for section in page.sections if section.items or len(section.rows) > 1]


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())


def as_text(page: Page) -> str:
    lines = [_one_line(page.title)]
    if page.lead:
        lines.append(f"  {_one_line(page.lead)}")
    for section in _filled(page):
        lines += ["", section.heading]
        lines += _table(section.rows)
        for item in section.items:
            lines.append(f"  {_one_line(item.text)}")
            lines += [f"      $ {printable(command)}" for command in item.commands]
            lines += [f"      {printable(file)}" for file in item.files]
            lines += [f"      | {printable(line)}" for line in item.printed]
    return fitted("\n".join(lines))


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[_one_line(cell) for cell in row] for row in rows]
    return aligned(cells, indent=2) if len(rows) > 1 else []


def as_markdown(page: Page) -> str:
    parts = [f"# {_marked(page.title)}"]
    if page.lead:
        parts.append(f"> {_marked(page.lead)}")
    for section in _filled(page):
        parts.append(f"## {section.heading}")
        if len(section.rows) > 1:
            head, *rows = section.rows
            lines = [head, ["---"] * len(head), *([_marked_cell(c) for c in row] for row in rows)]
            parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        if section.items:
            parts.append("\n".join(_bullet(item) for item in section.items))
    return "\n\n".join(parts) + "\n"


def _bullet(item: Item) -> str:
    lines = [f"- {_marked(item.text)}"]
    lines += [f"  - {_code(command)}" for command in item.commands]
    lines += [f"  - {_marked_link(_code(file), file)}" for file in item.files]
    lines += [f"  - {_code(line)}" for line in item.printed]
    return "\n".join(lines)


def _marked_cell(cell: str) -> str:
    text = _marked(cell)
    return _marked_link(text, cell.file) if isinstance(cell, Linked) else text


def _marked_link(text: str, file: str) -> str:
    address = _address(file)
    return f"[{text}](<{address}>)" if address else text


def _code(text: str) -> str:
    """Code that holds backticks stands between more of them."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{_one_line(text)}{space}{fence}"


def _marked(text: str) -> str:
    """Text of others that stays text in Markdown."""
    escaped = re.sub(r"([\\`*_\[\]|#~])", r"\\\1", _one_line(text))
    return escaped.replace("<", "&lt;")


_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
blockquote { margin: 0; padding-left: 1rem; border-left: 3px solid #8888; white-space: pre-wrap; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #8884; }
code { display: block; font: 13px/1.5 ui-monospace, monospace; overflow-wrap: anywhere; }
code.command { background: #8882; padding: .2rem .5rem; margin: .2rem 0; border-radius: 4px; }
""".strip()

#: Nothing is loaded from anywhere, whatever the texts in the page hold.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def as_html(page: Page) -> str:
    body = [f"<h1>{_safe(page.title)}</h1>"]
    if page.lead:
        body.append(f"<blockquote>{html.escape(printable(page.lead))}</blockquote>")
    for section in _filled(page):
        body.append(f"<h2>{_safe(section.heading)}</h2>")
        body += _html_table(section.rows)
        body += _html_list(section.items)
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_safe(page.title)}</title><style>{_STYLE}</style>"
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + (
        "\n".join(body) + "\n</body></html>\n"
    )


def _html_table(rows: Sequence[Sequence[str]]) -> list[str]:
    if len(rows) < 2:
        return []
    head, *others = rows
    lines = ["<table>", _html_row("th", head)]
    return [*lines, *(_html_row("td", row) for row in others), "</table>"]


def _html_row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{_html_cell(cell)}</{tag}>' for cell in cells)}</tr>"


def _html_cell(cell: str) -> str:
    text = _safe(cell)
    return _html_link(text, cell.file) if isinstance(cell, Linked) else text


def _html_link(text: str, file: str) -> str:
    address = html.escape(_address(file))
    return f'<a href="{address}">{text}</a>' if address else text


def _html_list(items: Sequence[Item]) -> list[str]:
    if not items:
        return []
    lines = ["<ul>"]
    for item in items:
        commands = "".join(f'<code class="command">{_safe(c)}</code>' for c in item.commands)
        files = "".join(f"<code>{_html_link(_safe(f), f)}</code>" for f in item.files)
        files += "".join(f"<code>{_safe(line)}</code>" for line in item.printed)
        lines.append(f"<li>{_safe(item.text)}{commands}{files}</li>")
    return [*lines, "</ul>"]


def _safe(text: str) -> str:
    return html.escape(_one_line(text))
