"""Waiting for processes and files that a running sprint changes."""

from __future__ import annotations

import glob
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
#: Far beyond the duration of any step: only an event that never happens takes so long.
PATIENCE_S = 90.0


def wait_for(condition: Callable[[], T | None], what: str = "the condition holds") -> T:
    """Return the value of a condition once it holds; how long that takes does not matter."""
    give_up = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < give_up, f"never happened: {what}"
        time.sleep(0.02)
    return value


def paths(folder: Path, pattern: str) -> list[Path]:
    """Return the paths that match, although a sprint may remove folders meanwhile.

    `Path.glob` fails with `FileNotFoundError` where a folder vanishes while it is listed.
    """
    names = glob.glob(  # noqa: PTH207 - see above
        pattern, root_dir=folder, recursive=True, include_hidden=True
    )
    return [folder / name for name in sorted(names)]


def process_lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
