"""Texts, names and numbers as a forge on another machine takes them."""

from __future__ import annotations

import re

from caloron.domain.observations import marker, marker_key
from caloron.errors import ForgeError, NotFound, UsageError

_LONGEST_TITLE = 255
_CUT = "\n\n*The rest was cut: the forge takes no longer text.*"


#: What git itself allows in a name, without what would need care on a command line.
_BRANCH = re.compile(r"(?!-)[^\x00-\x20~^:?*\[\\\x7f]{1,244}")
_LARGEST_NUMBER = 1 << 31


def require_branch(name: str) -> str:
    """A branch as people name theirs: agents may have to go on with one."""
    owner, fork, _ = name.partition(":")
    if fork and owner:
        raise ForgeError(
            f"branch {name} is in a fork, which is not ours to push to",
            hint="let its owner push, or push the commits to a branch of the repository itself",
        )
    parts = name.split("/")
    if (
        not _BRANCH.fullmatch(name)
        or ".." in name
        or "@{" in name
        or any(not p or p.startswith(".") or p.endswith((".", ".lock")) for p in parts)
    ):
        raise UsageError(f"branch {name!r} is not a name that git takes")
    return name


def require_number(number: int, what: str = "issue or pull request") -> int:
    if not 0 < number < _LARGEST_NUMBER:
        raise no_such(number, what)
    return number


def no_such(number: int, what: str) -> NotFound:
    return NotFound(
        f"there is no {what} #{number}",
        hint="a repository that the token may not see looks empty as well",
    )


def fitting_title(title: str) -> str:
    line = " ".join(title.split())
    return line if len(line) <= _LONGEST_TITLE else line[: _LONGEST_TITLE - 1] + "…"


def fitting_body(body: str, longest: int) -> str:
    """A body without its end where it is too long; its marker is kept."""
    if len(body) <= longest:
        return body
    key = marker_key(body)
    end = _CUT + (f"\n\n{marker(key)}" if key else "")
    return body[: longest - len(end)] + end
