"""The graphs that come with the program: package data, each resolved by its bare name.

A composition is a JSON file in this folder; its name is the file's, without `.json`. Adding one is
adding its file.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

_SUFFIX = ".json"


@cache
def composition_names() -> tuple[str, ...]:
    """What can be named instead of a file, in alphabetical order."""
    found = (entry.name for entry in files(__package__).iterdir())
    return tuple(sorted(n.removesuffix(_SUFFIX) for n in found if n.endswith(_SUFFIX)))


def composition(name: str) -> bytes | None:
    """The text of the graph that a name means, with or without `.json`; None if it means none."""
    bare = name.removesuffix(_SUFFIX)
    if bare not in composition_names():
        return None
    return files(__package__).joinpath(bare + _SUFFIX).read_bytes()


def graph_text(name: str) -> bytes | None:
    """The text that a bare name of ours means, here: a file of that name in this folder wins."""
    shipped = composition(name)
    if shipped is None:
        return None
    own = (Path(name), Path(name.removesuffix(_SUFFIX) + _SUFFIX))
    found = next((file for file in own if file.is_file()), None)
    return shipped if found is None else found.read_bytes()
