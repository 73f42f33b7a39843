"""SQL lives in files: one statement per name, each under a line `-- name: <name>`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path


def load_statements(path: Path) -> dict[str, str]:
    """Every named statement of a file."""
    statements: dict[str, str] = {}
    name = ""
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("-- name:"):
            name = line.removeprefix("-- name:").strip()
            statements[name] = ""
        elif name:
            statements[name] += line + "\n"
    return statements


def with_prefix(statements: dict[str, str], tables: Iterable[str], prefix: str) -> dict[str, str]:
    """The same statements for a file in which these tables have a longer name."""
    names = re.compile(rf"\b({'|'.join(tables)})\b")
    return {name: names.sub(rf"{prefix}\1", sql) for name, sql in statements.items()}
