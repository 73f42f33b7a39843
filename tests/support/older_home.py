"""The home that version 0.4.0 wrote: `tests/data/make_home_0_4_0.py` says what is in it."""

from __future__ import annotations

import tarfile
from pathlib import Path

_ARCHIVE = Path(__file__).parents[1] / "data" / "home_0_4_0.tar.xz"


def unpack(folder: Path, project: str = "") -> Path:
    """The home, with all projects or with one."""
    others = f"home/projects/{project}"
    with tarfile.open(_ARCHIVE) as archive:
        wanted = [
            entry
            for entry in archive.getmembers()
            if not project
            or not entry.name.startswith("home/projects/")
            or entry.name == others
            or entry.name.startswith(f"{others}/")
        ]
        archive.extractall(folder, wanted)
    return folder / "home"
