"""What a project, sprint, task or agent may be called. Standard library only."""

from __future__ import annotations

import re

#: Names stand in commands that are copied, so none looks like an option.
ID_FORM = r"[a-z0-9_][a-z0-9_-]{0,63}"
ID_WORDS = "1 to 64 characters of a-z, 0-9, '_' and '-', the first of them no '-'"
_ID = re.compile(ID_FORM)


def is_valid_id(value: str) -> bool:
    """Whether a name may stand for a project, sprint, task or agent."""
    return _ID.fullmatch(value) is not None


def sprint_number(sprint_id: str) -> int | None:
    """The number that the id of a sprint ends with, `shop-3`."""
    number = sprint_id.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdigit() else None
