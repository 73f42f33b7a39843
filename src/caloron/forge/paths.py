"""Names of others as one segment of a path."""

from __future__ import annotations

from urllib.parse import quote


def segment(name: str) -> str:
    return quote(name, safe="")
