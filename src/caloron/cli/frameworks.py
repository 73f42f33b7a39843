"""Which agent frameworks this Caloron can run, for the commands that let a user choose one."""

from __future__ import annotations

from caloron.agents.frameworks import FRAMEWORKS
from caloron.errors import UsageError


def require_framework(name: str) -> str:
    """The name itself, or a `UsageError` that lists the known ones."""
    if name not in FRAMEWORKS:
        raise UsageError(
            f"framework {name!r} is not known", hint=f"take one of: {', '.join(FRAMEWORKS)}"
        )
    return name
