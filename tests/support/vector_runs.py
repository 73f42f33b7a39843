"""Runs graphs of the vectors the way the real program ran them."""

from __future__ import annotations

import sys
from pathlib import Path

from caloron.graph.foreign import Programs, Unsandboxed
from caloron.graph.protocols import StageRunner
from caloron.graph.runners import Runners
from caloron.graph.stdlib import StandardLibrary


def runner(directory: Path) -> StageRunner:
    """The standard library and programs without a sandbox, all kept in this directory."""
    programs = Programs(
        directory / "scripts", Unsandboxed(), interpreters={"python": [sys.executable, "-S"]}
    )
    return Runners(StandardLibrary(directory), programs)
