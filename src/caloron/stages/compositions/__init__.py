"""The compositions that come with the program, each resolved by its bare name.

A composition is a JSON file in this folder; its name is the file's, without `.json`. Adding one is
adding its file.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

_SUFFIX = ".json"
#: Names of earlier versions.
_ALIASES = {"sprint_tick": "sprint_tick_core"}


@cache
def composition_names() -> tuple[str, ...]:
    """Return all names, in alphabetical order."""
    entries = (entry.name for entry in files(__package__).iterdir())
    names = (name.removesuffix(_SUFFIX) for name in entries if name.endswith(_SUFFIX))
    return tuple(sorted((*names, *_ALIASES)))


def composition(name: str) -> bytes | None:
    """Return the text of a composition, with or without `.json`; None if there is none."""
    bare = name.removesuffix(_SUFFIX)
    if bare not in composition_names():
        return None
    return files(__package__).joinpath(_ALIASES.get(bare, bare) + _SUFFIX).read_bytes()


def graph_text(name: str) -> bytes | None:
    """Return the text of a composition, or of a file of its name in the current folder."""
    shipped = composition(name)
    if shipped is None:
        return None
    own = (Path(name), Path(name.removesuffix(_SUFFIX) + _SUFFIX))
    found = next((file for file in own if file.is_file()), None)
    return shipped if found is None else found.read_bytes()
