"""Checks names, numbers and texts before a forge is asked to store them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import get_args

from caloron.domain.model.snapshots import Verdict, marker, marker_key
from caloron.errors import ForgeError, NotFound, StaleBase, StaleHead, UsageError
from caloron.git.command import is_commit_id

_LOCAL_BRANCH = re.compile(r"[a-z0-9._/-]{1,128}")
#: The names that git allows, without characters that need care on a command line.
_REMOTE_BRANCH = re.compile(r"(?!-)[^\x00-\x20~^:?*\[\\\x7f]{1,244}")
_LARGEST_NUMBER = 1 << 31
_LONGEST_TITLE = 255
_CUT = "\n\n*The rest was cut: the forge takes no longer text.*"


def require_local_branch(name: str) -> str:
    """A branch name that is safe as a ref, as a path and on a command line."""
    if not _LOCAL_BRANCH.fullmatch(name) or name.startswith("-") or not _are_parts_valid(name):
        raise UsageError(
            f"branch {name!r} is not a name the forge takes",
            hint="use 1 to 128 of a-z 0-9 . _ / - with no '..' and no leading '/' or '-'",
        )
    return name


def require_remote_branch(name: str) -> str:
    """Check the name of a branch that may be of people: agents may have to continue it."""
    owner, fork, _ = name.partition(":")
    if fork and owner:
        raise ForgeError(
            f"branch {name} is in a fork, which is not ours to push to",
            hint="let its owner push, or push the commits to a branch of the repository itself",
        )
    if not _REMOTE_BRANCH.fullmatch(name) or "@{" in name or not _are_parts_valid(name):
        raise UsageError(f"branch {name!r} is not a name that git takes")
    return name


def _are_parts_valid(name: str) -> bool:
    parts = name.split("/")
    return ".." not in name and all(
        part and not part.startswith(".") and not part.endswith((".", ".lock")) for part in parts
    )


def require_commit(commit: str) -> str:
    if not is_commit_id(commit):
        raise UsageError(f"{commit!r} is not a full commit id", hint="git rev-parse prints one")
    return commit


def require_storable(subject: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{subject} is not valid Unicode", hint="give it as UTF-8") from None
    if "\0" in text:
        raise UsageError(f"{subject} contains a NUL character", hint="remove it")


def require_text(subject: str, text: str) -> None:
    if not text.strip():
        raise UsageError(f"{subject} must not be empty")
    require_storable(subject, text)


def require_issue(title: str, body: str, labels: Iterable[str]) -> None:
    require_text("the title of an issue", title)
    require_storable("the body of an issue", body)
    for label in labels:
        require_text("a label", label)


def require_pull(title: str, body: str, branch: str, main: str) -> None:
    require_text("the title of a pull request", title)
    require_storable("the body of a pull request", body)
    if branch == main:
        raise UsageError(
            f"{main} cannot be merged into itself", hint="push the work to its own branch"
        )


def require_review(verdict: Verdict, body: str) -> None:
    if verdict not in get_args(Verdict):
        raise UsageError(
            f"{verdict!r} is no verdict", hint=f"use one of {', '.join(get_args(Verdict))}"
        )
    require_storable("the body of a review", body)


def require_number(number: int, kind: str = "issue or pull request") -> int:
    if not 0 < number < _LARGEST_NUMBER:
        raise no_such(number, kind)
    return number


def no_such(number: int, kind: str) -> NotFound:
    return NotFound(
        f"there is no {kind} #{number}",
        hint="a repository that the token may not see looks empty as well",
    )


def no_branch(name: str) -> NotFound:
    return NotFound(f"there is no branch {name} to merge", hint="push it first")


def second_pull(branch: str, number: int) -> ForgeError:
    return ForgeError(
        f"branch {branch} already has the open pull request #{number}",
        hint=f"use #{number}, or close it first",
    )


def stale_head(branch: str, tip: str, expected: str) -> StaleHead:
    """The error for a branch that is not where the caller expects it; empty means absent."""
    return StaleHead(
        f"branch {branch} is {f'at {tip}' if tip else 'not there'}, "
        f"not {f'at {expected}' if expected else 'absent'} as expected",
        hint="read the branch again, then decide again",
    )


def stale_base(main: str, tip: str, expected: str) -> StaleBase:
    return StaleBase(
        f"{main} is {f'at {tip}' if tip else 'not there'}, not at {expected} as expected",
        hint="verify the result on the new main, then merge again",
    )


def truncate_title(title: str) -> str:
    line = " ".join(title.split())
    return line if len(line) <= _LONGEST_TITLE else line[: _LONGEST_TITLE - 1] + "…"


def truncate_body(body: str, longest: int) -> str:
    """Cut a body that is too long; its marker is kept."""
    if len(body) <= longest:
        return body
    key = marker_key(body)
    end = _CUT + (f"\n\n{marker(key)}" if key else "")
    return body[: longest - len(end)] + end
