"""Text for people: tables, folded lines, and pages as text, Markdown or HTML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caloron.cli.format import one_line, printable
from caloron.cli.output import is_terminal

_NARROWEST = 40
_WIDEST = 120
_GAP = "  "
_WIDEST_CELL = 60
#: A cell that is no longer stays on one line.
_SHORT = 8
#: A longer word may be broken, unless it is a path or an address.
_LONGEST_WORD = 28


def screen_width() -> int:
    """How wide lines may be here; on very wide screens they stay readable."""
    # `caloron status` in a pipe does not need it, and has to start fast.
    import shutil

    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((80, 24)).columns))


def folded(line: str, width: int, indent: int = 2) -> str:
    """Fold a line of prose to a width; continuation lines are indented."""
    first, *more = wrapped(printable(line), width - indent, whole=True)
    return f"\n{' ' * indent}".join([first, *more])


def on_screen(line: str, indent: int) -> str:
    """Fold a line for a terminal; files and pipes get it whole."""
    return folded(line, screen_width(), indent) if is_terminal() else printable(line)


def fitted(text: str) -> str:
    """Lines of prose and tables; on a terminal those that are too long for it are folded.

    Commands, paths, addresses and blocks of code stay as they are, because they are copied.
    """
    text = printable(text)
    if not is_terminal():
        return text
    width, code, lines = screen_width(), False, []
    for line in text.split("\n"):
        code ^= line.startswith("```")
        lines.append(line if code or cells(line) <= width else _fold(line, width))
    return "\n".join(lines)


def _fold(line: str, width: int) -> str:
    words = line.lstrip()
    indent = len(line) - len(words)
    return line if words.startswith("$ ") else " " * indent + folded(words, width, indent + 2)


def aligned(rows: Sequence[Sequence[str]], *, head: bool = True, indent: int = 0) -> list[str]:
    """The lines of a table; a row of one cell is a line of its own.

    On a terminal that is too narrow the longest cells are folded inside of their columns. Where
    the columns have no room for that, each row becomes a few lines of names and values: no cell is
    left out and none is cut. Without a head, only those rows do that have no room.
    """
    left = " " * indent
    rows = [[printable(cell) for cell in row] for row in rows]
    full = [row for row in rows if len(row) > 1]
    if not full:
        return [left + row[0] for row in rows]
    room = screen_width() - indent if is_terminal() else None
    widths = [max(map(cells, column)) for column in zip(*full, strict=True)]
    fits = room is None or _narrowed(widths, full, room)
    names = full[0] if head else ()
    if room is not None and head:
        fits = fits and all(_has_room(row, widths) for row in full)
        rows = rows if fits else [row for row in rows if row is not names]
    lines: list[str] = []
    for row in rows:
        if len(row) == 1:
            lines.append(row[0])
        elif fits and (room is None or _has_room(row, widths)):
            lines += _in_columns(row, widths)
        else:
            assert room is not None
            lines += _below_each_other(row, names, room)
    return [(left + line).rstrip() for line in lines]


def _narrowed(widths: list[int], rows: Sequence[Sequence[str]], room: int) -> bool:
    """Take from the widest columns what is too much; False: the table does not fit even so."""
    least = [max(map(_least, column)) for column in zip(*rows, strict=True)]
    over = sum(widths) + len(_GAP) * (len(widths) - 1) - room
    while over > 0:
        spare = [width - smallest for width, smallest in zip(widths, least, strict=True)]
        if not any(part > 0 for part in spare):
            return False
        widest = max((n for n, part in enumerate(spare) if part > 0), key=lambda n: widths[n])
        widths[widest] -= 1
        over -= 1
    return True


def _least(cell: str) -> int:
    """How narrow a column may become for this cell."""
    words = max((cells(word) for word in cell.split()), default=0)
    return min(cells(cell), max(_SHORT, min(words, _LONGEST_WORD)))


def _has_room(row: Sequence[str], widths: Sequence[int]) -> bool:
    """True if no path or address is wider than its column."""
    return all(
        cells(word) <= width
        for cell, width in zip(row, widths, strict=True)
        for word in cell.split()
        if _is_whole(word)
    )


def _in_columns(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    columns = [
        [cell] if cells(cell) <= width else wrapped(cell, width)
        for cell, width in zip(row, widths, strict=True)
    ]
    tallest = max(map(len, columns))
    filled = [[*column, *[""] * (tallest - len(column))] for column in columns]
    return [_GAP.join(map(cropped, line, widths)) for line in zip(*filled, strict=True)]


def _below_each_other(row: Sequence[str], names: Sequence[str], room: int) -> list[str]:
    """A row that has no room in columns: each cell with its name, the first one above the others.

    Without names, empty cells are left out.
    """
    named = zip(names or [""] * len(row), row, strict=True)
    first, *more = [f"{name}: {cell or '-'}" if name else cell for name, cell in named]
    lines = wrapped(first, room, whole=True)
    inner = ""
    for value in filter(None, more):
        joined = f"{inner}{_GAP}{value}" if inner else value
        if cells(joined) <= room - 2:
            inner = joined
            continue
        lines += [f"  {inner}"] if inner else []
        *whole, inner = wrapped(value, room - 4, whole=True)
        lines += [f"  {line}" if n == 0 else f"    {line}" for n, line in enumerate(whole)]
        if whole:
            lines, inner = [*lines, f"    {inner}"], ""
    return [*lines, f"  {inner}"] if inner else lines


_CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
_ESCAPED = re.compile(r"\\([\\`*_\[\]|#~<>])")
_FOLDING = re.compile(r"</?(?:details|summary)>")


_TABLE = re.compile(r"^\|.*\|\n\|[-:| ]+\|(?:\n\|.*\|)*$", re.MULTILINE)
_BETWEEN_CELLS = re.compile(r"(?<!\\)\|")


def unmarked(markdown: str) -> str:
    """Markdown as a terminal shows it: tables in columns, no escapes that only a web page needs."""
    text, at = "", 0
    for table in _TABLE.finditer(markdown):
        text += _unescaped(markdown[at : table.start()]) + _columns(table[0])
        at = table.end()
    return text + _unescaped(markdown[at:])


def _columns(table: str) -> str:
    head, _, *lines = [_BETWEEN_CELLS.split(line)[1:-1] for line in table.split("\n")]
    # A table of an agent may have more cells in a row than in the head, or fewer.
    filled = [[*line, *[""] * len(head)][: len(head)] for line in (head, *lines)]
    rows = [[_unescaped(cell).strip() for cell in line] for line in filled]
    return "\n".join(aligned(rows) if any(rows[0]) else aligned(rows[1:], head=False))


def _unescaped(markdown: str) -> str:
    import html

    parts = _CODE.split(markdown)
    parts[::2] = [
        html.unescape(_ESCAPED.sub(r"\1", _FOLDING.sub("", prose))) for prose in parts[::2]
    ]
    return "".join(parts)


def wrapped(text: str, width: int, *, whole: bool = False) -> list[str]:
    """Lines of at most so many cells: a letter of some languages takes two.

    `whole`: a path or an address is not broken, however long it is.
    """
    lines = [""]
    for word in text.split():
        for piece in _pieces(word, width, whole=whole):
            joined = f"{lines[-1]} {piece}" if lines[-1] else piece
            if cells(joined) <= width or not lines[-1]:
                lines[-1] = joined
            else:
                lines.append(piece)
    return lines


def _pieces(word: str, width: int, *, whole: bool) -> Sequence[str]:
    if cells(word) <= width or (whole and _is_whole(word)):
        return (word,)
    from rich.cells import chop_cells

    return chop_cells(word, max(2, width))


def _is_whole(word: str) -> bool:
    """True if the word may be a path or an address."""
    return "/" in word or "@" in word


def cells(text: str) -> int:
    """How many places a text takes on a screen."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cropped(text: str, width: int) -> str:
    """A text that fills exactly so many cells; what is too long ends with an ellipsis."""
    taken = cells(text)
    if taken <= width:
        return text + " " * (width - taken)
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 1) + "…"


FORMATS = ("text", "md", "html")


@dataclass(frozen=True)
class Item:
    """A line of a section, with the commands or files that belong to it."""

    text: str
    commands: Sequence[str] = ()
    files: Sequence[str] = ()
    #: Lines that a program printed.
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
    return {"text": as_text, "md": as_markdown, "html": as_html}[form](page)


def _filled(page: Page) -> list[Section]:
    return [section for section in page.sections if section.items or len(section.rows) > 1]


def as_text(page: Page) -> str:
    lines = [one_line(page.title)]
    if page.lead:
        lines.append(f"  {one_line(page.lead)}")
    for section in _filled(page):
        lines += ["", section.heading]
        if len(section.rows) > 1:
            lines += aligned([[one_line(cell) for cell in row] for row in section.rows], indent=2)
        for item in section.items:
            lines.append(f"  {one_line(item.text)}")
            lines += [f"      $ {printable(command)}" for command in item.commands]
            lines += [f"      {printable(file)}" for file in item.files]
            lines += [f"      | {printable(line)}" for line in item.printed]
    return fitted("\n".join(lines))


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
    return f"{fence}{space}{one_line(text)}{space}{fence}"


def _marked(text: str) -> str:
    """Text of others that stays text in Markdown."""
    escaped = re.sub(r"([\\`*_\[\]|#~])", r"\\\1", one_line(text))
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
.good { color: light-dark(#1a7f37, #3fb950); } .bad { color: light-dark(#cf222e, #f85149); }
.good, .bad { font-weight: 600; }
@media (max-width: 45rem) {
  tr:first-child { display: none; }
  tbody, tr, td { display: block; border: 0; padding: 0; }
  tr { border-bottom: 1px solid #8884; padding: .5rem 0; }
  td:first-child { font-weight: 600; }
  td:not(:first-child)::before { content: attr(data-name) ": "; opacity: .7; }
}
""".strip()

#: The words of a result that have a colour.
_TONES = {
    **dict.fromkeys(("green", "Done", "improved"), "good"),
    **dict.fromkeys(("red", "red, allowed", "Escalated", "failed", "degraded"), "bad"),
}

#: Nothing is loaded from anywhere, whatever the texts in the page hold.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def as_html(page: Page) -> str:
    body = [f"<h1>{_safe(page.title)}</h1>"]
    if page.lead:
        body.append(f"<blockquote>{_escaped_html(printable(page.lead))}</blockquote>")
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
    head, *body = rows
    names = "".join(f"<th>{_safe(name)}</th>" for name in head)
    lines = [f"<table><tr>{names}</tr>"]
    for row in body:
        # A narrow screen has no room for columns: there each cell stands below its name.
        cells = (_html_cell(name, cell) for name, cell in zip(head, row, strict=True))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return [*lines, "</table>"]


def _html_cell(name: str, cell: str) -> str:
    text = _html_link(_safe(cell), cell.file) if isinstance(cell, Linked) else _safe(cell)
    tone = f' class="{_TONES[cell]}"' if cell in _TONES else ""
    return f'<td data-name="{_safe(name)}"{tone}>{text}</td>'


def _html_link(text: str, file: str) -> str:
    address = _escaped_html(_address(file))
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
    return _escaped_html(one_line(text))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows under the names of their fields, aligned; a field that is itself a table is left out."""
    names = [name for name in dict.fromkeys(n for row in rows for n in row) if _fits(rows, name)]
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    return "\n".join(aligned([[name.upper() for name in names], *cells]))


def _fits(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    values = [row.get(name) for row in rows]
    parts = [p for value in values for p in (value if isinstance(value, list | tuple) else [value])]
    return not any(isinstance(part, Mapping | list | tuple) for part in parts)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return one_line(text, _WIDEST_CELL)


def _escaped_html(text: str) -> str:
    import html

    return html.escape(text)
