"""Which branches a rule of Gitea's is for: a name, or a pattern in which `*` ends at a slash."""

from __future__ import annotations

import re

_SPECIAL = re.compile(r"[*?\[{\\]")
_SETS = re.compile(r"\[(!?)([^\]]+)\]")


def is_for(rule: str, branch: str) -> bool:
    """Whether a rule of this name holds for a branch."""
    if not _SPECIAL.search(rule):
        return rule.casefold() == branch.casefold()
    try:
        return re.fullmatch(_expression(rule), branch) is not None
    except re.error:
        # What is no pattern is a name.
        return rule == branch


def _expression(rule: str) -> str:
    found, at, depth = "", 0, 0
    while at < len(rule):
        rest = rule[at:]
        if rest.startswith("**"):
            part, length = ".*", 2
        elif rest[0] == "\\":
            part, length = re.escape(rest[1:2]), 2
        elif one_of := _SETS.match(rest):
            inside = one_of[2].replace("\\", "\\\\").replace("^", "\\^")
            part, length = f"[{'^' if one_of[1] else ''}{inside}]", one_of.end()
        elif rest[0] == "{":
            part, length, depth = "(?:", 1, depth + 1
        elif rest[0] == "}" and depth:
            part, length, depth = ")", 1, depth - 1
        elif rest[0] == "," and depth:
            part, length = "|", 1
        else:
            part = {"*": "[^/]*", "?": "[^/]"}.get(rest[0], re.escape(rest[0]))
            length = 1
        found, at = found + part, at + length
    return found
