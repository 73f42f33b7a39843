"""Texts as long as a forge takes them."""

from __future__ import annotations

from caloron.domain.observations import marker, marker_key

_LONGEST_TITLE = 255
_CUT = "\n\n*The rest was cut: the forge takes no longer text.*"


def fitting_title(title: str) -> str:
    line = " ".join(title.split())
    return line if len(line) <= _LONGEST_TITLE else line[: _LONGEST_TITLE - 1] + "…"


def fitting_body(body: str, longest: int) -> str:
    """A body without its end where it is too long; its marker is kept."""
    if len(body) <= longest:
        return body
    key = marker_key(body)
    end = _CUT + (f"\n\n{marker(key)}" if key else "")
    return body[: longest - len(end)] + end
