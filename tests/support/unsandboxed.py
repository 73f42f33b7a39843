"""A sandbox for stages that confines nothing, and sandboxed commands for `subprocess`."""

from __future__ import annotations

import subprocess
from typing import Any

from caloron.graph.errors import StageTimedOut
from caloron.graph.runners.subprocess import ProcessResult
from caloron.ports import SandboxedCommand


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


def as_argv(command: SandboxedCommand) -> tuple[str, ...]:
    """Return a sandboxed command for `subprocess`: a shell opens its files at their numbers."""
    opens = " ".join(f'{fd}<"$f{fd}"' for fd in command.files)
    names = " ".join(f"f{fd}=$1; shift;" for fd in command.files)
    paths = map(str, command.files.values())
    return ("/bin/sh", "-c", f'{names} exec "$@" {opens}', "sh", *paths, *command.argv)
