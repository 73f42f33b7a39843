"""What the local forge takes and what it refuses, before anything is touched."""

from __future__ import annotations

import re

from caloron.errors import UsageError

_BRANCH = re.compile(r"[a-z0-9._/-]{1,128}")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def require_branch(name: str) -> str:
    """A branch name that is safe as a ref, as a path and on a command line."""
    parts = name.split("/")
    if (
        not _BRANCH.fullmatch(name)
        or ".." in name
        or name.startswith("-")
        or any(not p or p.startswith(".") or p.endswith((".", ".lock")) for p in parts)
    ):
        raise UsageError(
            f"branch {name!r} is not a name the forge takes",
            hint="use 1 to 128 of a-z 0-9 . _ / - with no '..' and no leading '/' or '-'",
        )
    return name


def require_commit(commit: str) -> str:
    if not _COMMIT.fullmatch(commit):
        raise UsageError(f"{commit!r} is not a full commit id", hint="git rev-parse prints one")
    return commit


def require_storable(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{what} is not valid Unicode", hint="give it as UTF-8") from None
    if "\0" in text:
        raise UsageError(f"{what} contains a NUL character", hint="remove it")


def require_text(what: str, text: str) -> None:
    if not text.strip():
        raise UsageError(f"{what} must not be empty")
    require_storable(what, text)
