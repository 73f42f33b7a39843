"""SQL lives in files: one statement per name, each under a line `-- name: <name>`."""

from __future__ import annotations

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
