"""What the pilot measured, for the page about it: printed, and kept where CALORON_PILOT says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def record_figures(what: str, figures: Mapping[str, object]) -> None:
    """One line of the pilot's table."""
    line = f"| {what} | " + ", ".join(f"{name} {value}" for name, value in figures.items()) + " |"
    print(line)
    if named := os.environ.get("CALORON_PILOT"):
        file = Path(named)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as page:
            page.write(f"{line}\n")
