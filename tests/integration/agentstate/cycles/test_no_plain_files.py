"""A device or a pipe where a file of the cycles should be is refused, and never read to its end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from caloron.cycles import Cycles, Location
from caloron.errors import StoreError


@pytest.mark.parametrize("name", ["forge.log", "forge.json"])
@pytest.mark.parametrize("what", ["/dev/full", "/dev/zero", "pipe", "folder"])
def test_a_file_that_is_not_plain_is_named_and_left_alone(
    tmp_path: Path, name: str, what: str
) -> None:
    cycles = Cycles(Location("forge", tmp_path / "forge.json", tmp_path / "forge.log"))
    cycles.begin()
    place = tmp_path / name
    place.unlink()
    if what == "pipe":
        os.mkfifo(place)
    elif what == "folder":
        place.mkdir()
    else:
        place.symlink_to(what)
    for act in (cycles.load, cycles.begin, lambda: cycles.log.newest(5) and cycles.load()):
        with pytest.raises(StoreError, match=f"cannot read {place}"):
            act()
    assert place.exists()
