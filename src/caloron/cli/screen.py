"""What fits on a screen: how wide lines may be, how long ones are folded, and tables."""

from __future__ import annotations

import re
from collections.abc import Sequence

from caloron.cli.output import is_terminal, printable

_NARROWEST = 40
_WIDEST = 120
_GAP = "  "
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
    """A line of prose, on several lines where one is too short for it."""
    first, *more = wrapped(printable(line), width - indent, whole=True)
    return "\n".join([first, *(" " * indent + rest for rest in more)])


def on_screen(line: str, indent: int) -> str:
    """The same, but only for a terminal: whoever reads a file or a pipe folds lines himself."""
    return folded(line, screen_width(), indent) if is_terminal() else printable(line)


def fitted(text: str) -> str:
    """Lines of prose and tables; on a terminal those that are too long for it are folded.

    Commands, paths, addresses and blocks of code stay as they are, because they are copied.
    """
    if not is_terminal():
        return text
    width, code, lines = screen_width(), False, []
    for line in text.split("\n"):
        code ^= line.startswith("```")
        lines.append(line if code or cells(line) <= width else _fold(line, width))
    return "\n".join(lines)


def _fold(line: str, width: int) -> str:
    words = line.lstrip()
    if words.startswith("$ "):
        return line
    indent = " " * (len(line) - len(words))
    first, *more = wrapped(words, width - len(indent) - 2, whole=True)
    return "\n".join([indent + first, *(f"{indent}  {rest}" for rest in more)])


def aligned(rows: Sequence[Sequence[str]], *, head: bool = True, indent: int = 0) -> list[str]:
    """The lines of a table; a row of one cell is a line of its own.

    On a terminal that is too narrow the longest cells are folded inside of their columns. Where
    the columns have no room for that, each row becomes a few lines of names and values: no cell is
    left out and none is cut. Without a head, only those rows do that have no room.
    """
    left = " " * indent
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
    """Whether no path or address is wider than its column."""
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
    # What an agent wrote may have more cells in a row than in the head, or fewer.
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
    """Whether it may be a path or an address."""
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
