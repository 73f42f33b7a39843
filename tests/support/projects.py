"""The project option of sprints that tests start outside of a repository."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def naming_project(arguments: Sequence[str], home: Path) -> list[str]:
    """The arguments of a command; `sprint` and `kickoff` name the active project of this home."""
    active = home / "active"
    begins = bool(arguments) and arguments[0] in ("sprint", "kickoff")
    if not begins or "--project" in arguments or "-p" in arguments or not active.exists():
        return list(arguments)
    return [arguments[0], "--project", active.read_text("utf-8").strip(), *arguments[1:]]
