"""The homes of a project's agents, as far as they are kept: which files there are, and whose."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal, NamedTuple

from caloron.agentstate.file import MIGRATIONS, MIGRATIONS_TABLE
from caloron.engine.state.archive import is_part
from caloron.store.health import Damage, applied_in, damages, open_copy

STATE = "state.sqlite"
#: What a backup carries at most of one file that somebody put there.
LARGEST = 16 << 20
_OURS = re.compile(
    r"state\.sqlite|dashboard\.md|cycle\.json|cycle\.log(\.\d+)?|retros/\d{4}-W\d\d\.md"
)
_ASIDE = re.compile(
    r".*\.(corrupt|other|damaged|future|foreign)(-.*)?|retros/.*\.edited(-\d+)?\.md"
)


class HomeFile(NamedTuple):
    """One file of an agent's home."""

    agent: str
    #: Below the home.
    name: str
    path: Path
    whose: Literal["ours", "aside", "person"]

    @property
    def part(self) -> str:
        """What it is called in a backup."""
        return f"agents/{self.agent}/{self.name}"


def homes_in(folder: Path) -> list[Path]:
    """The home of each agent; a link or a file there is none."""
    if not folder.is_dir():
        return []
    found = sorted(folder.iterdir())
    return [f for f in found if f.is_dir() and not f.is_symlink() and not f.name.startswith(".")]


def files_in(home: Path) -> Iterator[HomeFile]:
    """Every file of a home but locks and what SQLite keeps beside its own; links stay out."""
    for folder, below, names in os.walk(home):
        below[:] = sorted(b for b in below if not b.startswith("."))
        for name in sorted(names):
            path = Path(folder) / name
            own = path.relative_to(home).as_posix()
            beside = own in (f"{STATE}-wal", f"{STATE}-shm")
            if not name.startswith(".") and not beside and path.is_file() and not path.is_symlink():
                yield HomeFile(home.name, own, path, _whose(own))


def _whose(name: str) -> Literal["ours", "aside", "person"]:
    if _OURS.fullmatch(name):
        return "ours"
    return "aside" if _ASIDE.fullmatch(name) else "person"


def sorted_out(home: Path) -> tuple[list[HomeFile], list[str]]:
    """The files of a home that a backup carries as they are, and what is left out, with reasons."""
    carried, left_out = [], []
    for file in files_in(home):
        if file.name == STATE:
            continue
        if file.name.startswith(STATE):
            left_out.append(f"{_printable(file.part)}: an older file, kept beside")
        elif not is_part(file.part) or not _is_text(file.part):
            left_out.append(f"{_printable(file.part)}: its name cannot be kept")
        elif file.path.stat().st_size > LARGEST:
            left_out.append(f"{file.part}: it has more than {LARGEST >> 20} MB")
        else:
            carried.append(file)
    # The state of a cycle is written after its log: read before it, it is never ahead of it.
    return sorted(carried, key=lambda f: (f.name.startswith("cycle.log"), f.name)), left_out


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _printable(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()


def home_damages(connection: sqlite3.Connection) -> Iterator[Damage]:
    """What is wrong with the file of a home; agent-state and its like may add tables to it."""
    return damages(connection, MIGRATIONS, MIGRATIONS_TABLE, shared=True)


def sound_copy(copy: Path) -> tuple[list[tuple[str, str]], str]:
    """The migrations of a copied file, and what is wrong with it; empty: nothing."""
    try:
        with closing(open_copy(copy)) as connection:
            damage = next(home_damages(connection), None)
            applied = applied_in(connection, MIGRATIONS_TABLE)
    except sqlite3.Error as error:
        return [], str(error)
    return applied, f"{damage.what}: {damage.found}" if damage else ""
