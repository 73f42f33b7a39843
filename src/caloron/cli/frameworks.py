"""Which agent frameworks this Caloron can run, for the commands that let a user choose one."""

from __future__ import annotations

from caloron.agents.frameworks import FRAMEWORKS, framework_on_path
from caloron.errors import PreconditionFailed, UsageError


def require_framework(name: str) -> str:
    """The name itself, or a `UsageError` that lists the known ones."""
    if name not in FRAMEWORKS:
        raise UsageError(
            f"framework {name!r} is not known", hint=f"take one of: {', '.join(FRAMEWORKS)}"
        )
    return name


def framework_or_found(name: str | None) -> str:
    """The framework of a new project: the named one, else the agent that is on PATH."""
    if name is not None:
        return require_framework(name)
    if on_path := framework_on_path():
        return on_path
    raise PreconditionFailed(
        "no coding agent was found on PATH, and none was named",
        hint="install Claude Code (`claude`), or choose with --framework: " + ", ".join(FRAMEWORKS),
    )
