"""The workflows as a skill folder that an agent can read, with a manifest in the form of arc."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from caloron import __version__
from caloron.errors import AlreadyExists
from caloron.store.files import write_atomic

_BUNDLE = Path(__file__).parent / "bundle"


class Installed(NamedTuple):
    """One file of the folder, and whether it had to be written."""

    kind: str
    what: str

    def __str__(self) -> str:
        return f"skill: {self.kind} {self.what}"


def bundle() -> dict[str, bytes]:
    """Every file of the skill by its place in the folder."""
    files = sorted(file for file in _BUNDLE.rglob("*") if file.suffix in (".md", ".yaml"))
    return {
        file.relative_to(_BUNDLE).as_posix(): file.read_bytes().replace(
            b"VERSION_OF_CALORON", __version__.encode()
        )
        for file in files
    }


def install(where: Path, *, force: bool = False) -> list[Installed]:
    """Write the folder; a file of somebody else in the way is never written over unasked."""
    files = bundle()
    there = {name: _read(where / name) for name in files}
    changed = [name for name, found in there.items() if found not in (None, files[name])]
    if changed and not force:
        raise AlreadyExists(
            f"{where / changed[0]} holds something else",
            hint="choose another folder, or write over it with --force; nothing was changed",
        )
    for name, content in files.items():
        if there[name] != content:
            write_atomic(where / name, content)
    return [
        Installed("skipped" if there[name] == content else "wrote", name)
        for name, content in files.items()
    ]


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
