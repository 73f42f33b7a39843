"""A section of ours in a description that is somebody else's: kept up to date, by its markers.

What stands outside of the two markers is never touched. Without one of them it is no section of
ours any more: whoever took it out does not want it.
"""

from __future__ import annotations

import re

#: A description is not made longer than this: each forge has a limit, and cuts what is longer.
_LONGEST = 60_000
_REFERENCE = re.compile(r"(#|!|\bgh-|:/)(?=[0-9/])", re.IGNORECASE)
_BROKEN = "\\1\u200b"
_MARKER = re.compile(r"<!-- /?caloron-section:[^\s<>]+ -->")
_WHOLE = re.compile(
    r"\s*<!-- caloron-section:([^\s<>]+) -->.*?<!-- /caloron-section:\1 -->", re.DOTALL
)


def has_section(body: str, name: str) -> bool:
    """Whether the section stands there, whole and once."""
    begin, end = _markers(name)
    whole = body.count(begin) == body.count(end) == 1
    return whole and body.index(begin) < body.index(end)


def with_section(body: str, name: str, text: str, *, add: bool) -> str:
    """The body with this text in the section; `add`: one that was never there comes to the end."""
    begin, end = _markers(name)
    section = f"{begin}\n{inert(text)}\n{end}"
    if has_section(body, name):
        before, _, rest = body.partition(begin)
        held, _, after = rest.partition(end)
        if _same(f"{begin}{held}{end}", section):
            return body
        new = f"{before}{section}{after}"
    elif add and begin not in body and end not in body:
        new = f"{body.rstrip()}\n\n{section}" if body.strip() else section
    else:
        return body
    return new if len(new) <= max(_LONGEST, len(body)) else body


def without_sections(body: str) -> str:
    """What a person wrote."""
    return _WHOLE.sub("", body)


def without_section_markers(body: str) -> str:
    """The same text, as people read it."""
    return _MARKER.sub("", body)


def inert(text: str) -> str:
    """Words that close no issue: in the description of a pull request, `fixes #3` would."""
    return _REFERENCE.sub(_BROKEN, text.replace("<!--", "<! --"))


def _markers(name: str) -> tuple[str, str]:
    return f"<!-- caloron-section:{name} -->", f"<!-- /caloron-section:{name} -->"


def _same(held: str, wanted: str) -> bool:
    """Editors of forges have line ends of their own."""
    return held.replace("\r\n", "\n") == wanted
