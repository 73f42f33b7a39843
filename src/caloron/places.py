"""The home of Caloron: everything that belongs to no single project. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """Return `$CALORON_HOME`, or `~/.caloron`."""
    return Path(os.environ.get("CALORON_HOME") or "~/.caloron").expanduser().absolute()
