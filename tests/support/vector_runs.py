"""Runs graphs of the vectors the way the real program ran them."""

from __future__ import annotations

import sys
from pathlib import Path

from caloron.graph.runners.functions import RunnerChain
from caloron.graph.runners.subprocess import SubprocessRunner
from caloron.graph.runtime.protocols import StageRunner
from caloron.graph.stdlib import StandardLibrary
from tests.support.unsandboxed import Unsandboxed


def runner(directory: Path) -> StageRunner:
    """The standard library and programs without a sandbox, all kept in this directory."""
    programs = SubprocessRunner(
        directory / "scripts", Unsandboxed(), interpreters={"python": [sys.executable, "-S"]}
    )
    return RunnerChain(StandardLibrary(directory), programs)
