"""Projects made from a user's repository that has something in it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.home import Home


def from_repository(home: Home, files: dict[str, str], *, more: str = "true") -> Home:
    """A project whose main holds these files; `more` is a shell line before their commit."""
    source = home.root / "source"
    for name, text in files.items():
        file = source / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    line = f"git init -q -b main && git add . && {more} && git commit -q -m 'what was there'"
    subprocess.run(("sh", "-c", line), cwd=source, env=home.environment, check=True)
    return home.init("demo", "--repo", str(source))


def path_without(home: Home, *programs: str) -> str:
    """Return a PATH with every usual program except these."""
    folder = home.root / "bin"
    folder.mkdir()
    for path_entry in home.environment["PATH"].split(":"):
        for program in Path(path_entry).glob("*"):
            link = folder / program.name
            if program.name not in programs and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)
