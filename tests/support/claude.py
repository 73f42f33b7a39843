"""The real Claude Code for tests: pinned, installed once, kept outside the checkout."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

_INSTALL = Path(__file__).parents[2] / "scripts" / "claude.sh"


@cache
def claude() -> Path:
    """The program; CALORON_CLAUDE names another one, without it the pinned one is installed."""
    if named := os.environ.get("CALORON_CLAUDE"):
        return Path(named)
    done = subprocess.run((str(_INSTALL),), stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.strip())
