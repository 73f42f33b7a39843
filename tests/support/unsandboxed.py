"""A sandbox for stages that confines nothing and passes the whole environment on."""

from __future__ import annotations

import subprocess
from typing import Any

from caloron.graph.errors import StageTimedOut
from caloron.graph.runners.subprocess import ProcessResult


class Unsandboxed:
    def run(
        self, argv: Any, policy: Any, stdin: bytes, *, seconds: float, **_limits: Any
    ) -> ProcessResult:
        try:
            done = subprocess.run(
                argv, input=stdin, capture_output=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise StageTimedOut("not done in time") from error
        return ProcessResult(done.returncode, done.stdout, done.stderr)
