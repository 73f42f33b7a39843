"""Where Caloron keeps what is not of one project. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """`$CALORON_HOME`, or `~/.caloron`."""
    return Path(os.environ.get("CALORON_HOME") or "~/.caloron").expanduser().absolute()
