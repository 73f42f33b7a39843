"""A device or a pipe in place of a file of the cycles is refused, and never read to its end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from caloron.cycles import Cycles, Location
from caloron.errors import StoreError


@pytest.mark.parametrize("name", ["forge.log", "forge.json"])
@pytest.mark.parametrize("what", ["/dev/full", "/dev/zero", "pipe", "folder"])
def test_a_file_that_is_not_regular_is_named_and_not_changed(
    tmp_path: Path, name: str, what: str
) -> None:
    cycles = Cycles(Location("forge", tmp_path / "forge.json", tmp_path / "forge.log"))
    cycles.begin()
    path = tmp_path / name
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to(what)
    for act in (cycles.load, cycles.begin, lambda: cycles.log.newest(5) and cycles.load()):
        with pytest.raises(StoreError, match=f"cannot read {path}"):
            act()
    assert path.exists()
