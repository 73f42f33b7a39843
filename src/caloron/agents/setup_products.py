"""What setup made in a workspace: found by looking, since a line may make more than is known.

Setup runs code that nobody has looked at, so no link is followed and no name is trusted.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from caloron.agents.untrusted import folder_in, read_regular
from caloron.agents.workspaces import OWN_FOLDER

#: Folders that hold what others wrote, and files that say which version of it.
_DEPENDENCIES = re.compile(
    r"(.*/)?(\.venv|venv|node_modules|\.pnpm-store|\.yarn|\.bundle|\.husky/_|[^/]*\.egg-info"
    r"|Cargo\.lock|go\.sum|uv\.lock|poetry\.lock|package-lock\.json)\Z"
)
_NEVER = (".git", "__pycache__")
_SPECIAL = re.compile(r"([\\*?\[\]!# ])")
_ESCAPED = r"\\\1"
_ESCAPE = re.compile(r"\\(.)")
_EXCLUDE_LIMIT = 1 << 24


def snapshot(workspace: Path) -> frozenset[str]:
    """Every path in a workspace, relative to it."""
    return frozenset(name for name, _ in _walk(workspace, None))


def made_since(before: frozenset[str], workspace: Path) -> list[str]:
    """The paths that are new since then; of a new folder only the folder itself."""
    # Caloron's own folder may be there already in the next workspace.
    known = before | {OWN_FOLDER}
    return sorted(name for name, new in _walk(workspace, known) if new)


def _walk(workspace: Path, known: frozenset[str] | None) -> Iterator[tuple[str, bool]]:
    """Paths and whether they are new; below what is new nothing is looked at."""
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(workspace / folder) as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}" if folder else entry.name
                if entry.name in _NEVER or not name.isprintable():
                    continue
                new = known is not None and name not in known
                if not new and entry.is_dir(follow_symlinks=False):
                    folders.append(name)
                yield name, new


def not_shared(products: Sequence[str], declared: Sequence[str]) -> list[str]:
    """What may be made of any file of the repository, so that it fits this commit alone.

    In a workspace of another commit it would be out of date, and tests would test old code.
    """
    own = f"{OWN_FOLDER}/"
    known = (name in declared or name.startswith(own) or _DEPENDENCIES.match(name)
             for name in products)  # fmt: skip
    return [name for name, is_known in zip(products, known, strict=True) if not is_known]


def plantable(products: Sequence[str], workspace: Path) -> list[str]:
    """Those of the products that nothing in the workspace stands in the way of."""
    return [name for name in products if _is_free(workspace, Path(name))]


def _is_free(workspace: Path, product: Path) -> bool:
    for parent in reversed(product.parents[:-1]):
        try:
            if not stat.S_ISDIR((workspace / parent).lstat().st_mode):
                return False
        except FileNotFoundError:
            return True
    return not os.path.lexists(workspace / product)


def excluded(workspace: Path) -> tuple[str, ...]:
    """What git overlooks in a workspace where no agent has been yet."""
    with folder_in(workspace, ".git", "info") as folder:
        lines = read_regular(folder, "exclude", _EXCLUDE_LIMIT).decode("utf-8", "replace")
    named = (line.removesuffix("/") for line in lines.splitlines() if line.startswith("/"))
    return tuple(_ESCAPE.sub(r"\1", name[1:]) for name in named)


def ignore_lines(products: Sequence[str]) -> str:
    """Lines for git's list of what it overlooks."""
    return "".join(f"/{_SPECIAL.sub(_ESCAPED, name)}\n" for name in products)
