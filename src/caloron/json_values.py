"""Values in JSON that others wrote: one that is missing or of another type is empty.

Each function takes the keys that lead from a decoded value to the wanted one.
"""

from __future__ import annotations

from typing import Any


def at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def text(value: Any, *keys: str) -> str:
    wanted = at(value, *keys)
    return wanted if isinstance(wanted, str) else ""


def table(value: Any, *keys: str) -> dict[str, Any]:
    wanted = at(value, *keys)
    return wanted if isinstance(wanted, dict) else {}


def items(value: Any, *keys: str) -> list[Any]:
    wanted = at(value, *keys)
    return wanted if isinstance(wanted, list) else []


def tables(value: Any, *keys: str) -> list[dict[str, Any]]:
    return [item for item in items(value, *keys) if isinstance(item, dict)]


def number(value: Any, *keys: str) -> float:
    """Return a number from 0 on; anything else is 0."""
    wanted = at(value, *keys)
    if isinstance(wanted, bool) or not isinstance(wanted, int | float):
        return 0.0
    return float(wanted) if 0 <= wanted < 1e15 else 0.0


def count(value: Any, *keys: str) -> int:
    return int(number(value, *keys))
