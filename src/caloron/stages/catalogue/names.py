"""Names for tasks and sprints, made from what people wrote."""

from __future__ import annotations

import re

_NOT_IN_IDS = re.compile(r"[^a-z0-9]+")
_LONGEST = 48


def slug(text: str) -> str:
    """Text as it may stand in an id; `x` where nothing is left of it."""
    return _NOT_IN_IDS.sub("-", text.lower()).strip("-")[:_LONGEST].strip("-") or "x"


def distinct(names: list[str]) -> list[str]:
    """The names in their order, with a number behind those that were there before."""
    taken: set[str] = set()
    found = []
    for name in names:
        number, free = 1, name
        while free in taken:
            number += 1
            free = f"{name}-{number}"
        taken.add(free)
        found.append(free)
    return found
