"""Which agent frameworks this Caloron can run, for the commands that let a user choose one."""

from __future__ import annotations

from caloron.errors import UsageError

KNOWN = ("stub", "command")


def require_framework(name: str) -> str:
    """The name itself, or a `UsageError` that lists the known ones."""
    if name not in KNOWN:
        raise UsageError(
            f"framework {name!r} is not known", hint=f"take one of: {', '.join(KNOWN)}"
        )
    return name
