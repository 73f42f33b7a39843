"""A project's files as detection sees them: a listing and a reader, and no trust in either."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from caloron.errors import CaloronError
from caloron.store import log

#: Only such names go into a shell line; each is also a word of its own for the shell.
_PLAIN = re.compile(r"[A-Za-z0-9_.+@-]+(/[A-Za-z0-9_.+@-]+)*\Z")

#: Each of these shows a Python project, as does any Python source.
PYTHON_FILES = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "uv.lock")


class ProjectCommands(msgspec.Struct, frozen=True, kw_only=True):
    """The commands that set up and verify a project."""

    #: One shell line; empty: nothing to install.
    setup: str = ""
    #: One shell line; empty: none was detected.
    verify: str = ""
    #: The files whose content decides whether what setup made can be used again.
    lock_files: tuple[str, ...] = ()
    #: Known products of setup, relative to the workspace; there may be more.
    products: tuple[str, ...] = ()
    #: For setup, verify and agents; `{workspace}` is the path of the workspace in the sandbox.
    env: dict[str, str] = msgspec.field(default_factory=dict)
    #: Folders to put first on PATH, with the same placeholder.
    path: tuple[str, ...] = ()
    #: One line for people.
    summary: str = ""


class ProjectFiles:
    """The files of a repository; one that cannot be read counts as empty."""

    def __init__(self, files: Collection[str], read: Callable[[str], str]) -> None:
        self.names = frozenset(name for name in files if _PLAIN.match(name))
        self._read = read

    def text(self, name: str) -> str:
        if name not in self.names:
            return ""
        try:
            return self._read(name)
        except (OSError, ValueError, CaloronError) as error:
            log.warning("cannot read a file of the project", error=error, path=name)
            return ""

    def toml(self, name: str) -> dict[str, Any]:
        try:
            return tomllib.loads(self.text(name))
        except (ValueError, RecursionError) as error:
            log.info("a file of the project is not TOML", error=error, path=name)
            return {}

    def json(self, name: str) -> dict[str, Any]:
        try:
            content = json.loads(self.text(name) or "{}")
        except (ValueError, RecursionError) as error:
            log.info("a file of the project is not JSON", error=error, path=name)
            return {}
        return content if isinstance(content, dict) else {}

    def present(self, *names: str) -> tuple[str, ...]:
        """Return those of the names that exist, in their order."""
        return tuple(name for name in names if name in self.names)

    def under(self, folder: str) -> tuple[str, ...]:
        """Return every file below a folder of the repository."""
        return tuple(sorted(name for name in self.names if name.startswith(f"{folder}/")))


def table(value: Any, *keys: str) -> dict[str, Any]:
    """Return the table at a path of keys in parsed TOML or JSON; empty if there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def strings(value: Any) -> list[str]:
    """Return the strings of a list; only those of one line."""
    items = value if isinstance(value, list) else []
    return [item for item in items if isinstance(item, str) and item and item.isprintable()]
