"""Which folder `caloron agent-state` works in, and how it looks into the file there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from caloron.errors import UsageError

Given = dict[str, Any]


def place(said: str, what: str) -> Path:
    """A folder as somebody wrote it; `~` is their home, also where no shell has seen it."""
    where = os.path.expanduser(said)  # noqa: PTH111 - that of Path raises for an unknown user
    if where.startswith("~"):
        raise UsageError(
            f"{what} is {said[:80]!r}, and there is no such user",
            hint="write the whole path; a folder whose name begins with ~ is ./~…",
        )
    return Path(where).absolute()


def instance_dir() -> Path:
    """`$MF_INSTANCE_DIR`, or where one stands."""
    return place(os.environ.get("MF_INSTANCE_DIR") or ".", "MF_INSTANCE_DIR")


def file() -> Path:
    return instance_dir() / "state.sqlite"


def require_file() -> Path:
    """The file, where there is one: only what is handed in may make it."""
    from caloron.agentstate.database import require_database

    return require_database(instance_dir())


def look(name: str, values: Given) -> Iterator[Given]:
    """The rows of a query, one by one, however many; nothing is made, migrated or locked."""
    from caloron.agentstate.database import read_rows

    yield from read_rows(file(), name, values)


def row(record: Any) -> Given:
    told: Given = record._asdict()
    return told
