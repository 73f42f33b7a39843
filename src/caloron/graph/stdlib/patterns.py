"""Patterns written for Rust's regex library, as Python's understands them.

A program of its own (JSON in, JSON out): Python's matcher can take time without end and lets no
other thread of its process run meanwhile, so only another process can be held to a time limit.
"""

from __future__ import annotations

import json
import re
import resource
import sys

#: More than the stage allows: this ends a match whose parent process is gone.
_CPU_SECONDS = 60
_ESCAPES = {"z": r"\Z", "A": r"\A"}
_REFERENCE = re.compile(r"\$(?:\$|\{([^}]*)\}|([0-9A-Za-z_]+))")


def translated(pattern: str) -> str:
    """The same pattern for Python; raises ValueError for what it has no word for."""
    lines = re.match(r"\(\?[a-zA-Z]*m", pattern) is not None
    written: list[str] = []
    place, in_class = 0, False
    while place < len(pattern):
        one = pattern[place]
        if one == "\\":
            written.append(_escape(pattern[place : place + 2], in_class))
            place += 2
            continue
        if one == "[":
            in_class = True
        elif one == "]":
            in_class = False
        elif one == "$" and not in_class and not lines:
            one = r"\Z"  # Python's own also matches before a last line break.
        elif pattern.startswith("(?<", place) and pattern[place + 3 : place + 4] not in ("=", "!"):
            written.append("(?P<")
            place += 3
            continue
        written.append(one)
        place += 1
    return "".join(written)


def _escape(escaped: str, in_class: bool) -> str:
    if escaped[1:] in ("p", "P"):
        raise ValueError("classes of Unicode properties are not known here")
    return escaped if in_class else _ESCAPES.get(escaped[1:], escaped)


def expand(replacement: str, found: re.Match[str]) -> str:
    """A replacement with `$1`, `${name}` and `$$` filled in; an unknown group is empty."""

    def group(reference: re.Match[str]) -> str:
        if reference[0] == "$$":
            return "$"
        name = reference[1] if reference[1] is not None else reference[2]
        key = int(name) if name.isdigit() else name
        try:
            return found[key] or ""
        except (IndexError, KeyError):
            return ""

    return _REFERENCE.sub(group, replacement)


def answer(given: dict[str, str]) -> object:
    """What the stage `regex_match` gives; with a replacement, what `regex_replace` gives."""
    pattern = re.compile(translated(given["pattern"]))
    if "replacement" in given:
        replacement = given["replacement"]
        return pattern.sub(lambda found: expand(replacement, found), given["text"])
    found = pattern.search(given["text"])
    if found is None:
        return {"matched": False, "full_match": None, "groups": []}
    return {"matched": True, "full_match": found[0], "groups": list(found.groups())}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    try:
        sys.stdout.write(json.dumps(answer(json.load(sys.stdin))))
    except (re.error, ValueError, RecursionError) as error:
        sys.exit(str(error))
