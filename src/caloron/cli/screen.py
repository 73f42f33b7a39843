"""What fits on a screen: how wide lines may be, and how long ones are folded."""

from __future__ import annotations

import html
import re
import shutil

from caloron.cli.output import is_terminal, printable

_NARROWEST = 40
_WIDEST = 120


def screen_width() -> int:
    """How wide lines may be here; on very wide screens they stay readable."""
    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((80, 24)).columns))


def folded(line: str, width: int, indent: int = 2) -> str:
    """A line of prose, on several lines where one is too short for it."""
    first, *more = wrapped(printable(line), width - indent)
    return "\n".join([first, *(" " * indent + rest for rest in more)])


def on_screen(line: str, indent: int) -> str:
    """The same, but only for a terminal: whoever reads a file or a pipe folds lines himself."""
    return folded(line, screen_width(), indent) if is_terminal() else printable(line)


_CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
_ESCAPED = re.compile(r"\\([\\`*_\[\]|#~<>])")
_FOLDING = re.compile(r"</?(?:details|summary)>")


def unmarked(markdown: str) -> str:
    """Markdown as a terminal shows it: without the escapes that only a web page needs."""
    parts = _CODE.split(markdown)
    parts[::2] = [
        html.unescape(_ESCAPED.sub(r"\1", _FOLDING.sub("", prose))) for prose in parts[::2]
    ]
    return "".join(parts)


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most so many cells: a letter of some languages takes two."""
    from rich.cells import chop_cells

    lines = [""]
    for word in text.split():
        for piece in (word,) if cells(word) <= width else chop_cells(word, max(2, width)):
            joined = f"{lines[-1]} {piece}" if lines[-1] else piece
            if cells(joined) <= width:
                lines[-1] = joined
            else:
                lines.append(piece)
    return lines


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
