"""The form of names of projects, sprints, tasks and agents, and of addresses of servers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from urllib.parse import SplitResult

#: Names are copied into commands, so a name must not look like an option.
ID_FORM = r"[a-z0-9_][a-z0-9_-]{0,63}"
ID_WORDS = "1 to 64 characters of a-z, 0-9, '_' and '-', the first of them no '-'"
_ID = re.compile(ID_FORM)


def is_valid_id(value: str) -> bool:
    """True for a valid name of a project, sprint, task or agent."""
    return _ID.fullmatch(value) is not None


def sprint_number(sprint_id: str) -> int | None:
    """Return the number at the end of a sprint's id, such as `shop-3`."""
    number = sprint_id.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdigit() else None


def http_url(text: str) -> SplitResult | None:
    """Split an address of http or https; None for a text that is no such address."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(text)
        # Reading the port checks it.
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if is_valid else None
