"""The output of a failed verification, shortened for people. Standard library only."""

from __future__ import annotations

import re
from pathlib import Path

_LINES = 15
_NAMED = 3
_LONGEST = 500
#: The number of bytes at the end of a log that are read.
_TAIL = 1 << 16
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: Rulers that test runners draw: whole lines, and both ends of a summary.
_RULER = re.compile(r"^[=_*~─━-]{4,}\s*|\s*[=_*~─━-]{4,}$")
#: The lines in which test runners name a failed test.
_FAILED = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?",  # pytest
        r"(?:FAIL|ERROR): (\S+(?: \([\w.]+\))?)(?:\s.*)?",  # unittest
        r"\s*--- FAIL: (\S+)(?: \(.*\))?",  # go
        r"test (\S+) \.\.\. FAILED",  # cargo
        r"not ok \d+ (?:- )?(.+?)(?: # .*)?",  # TAP, node --test
        r"\s*(?:✖|✗|✘|\u00d7|●) (.+?)(?: \(?[\d.]+ ?m?s\)?)?",  # node, jest, vitest, ava
    )
)


def failure_line(printed: str) -> str:
    """Return one line about a failed verification: its last line and the failed tests."""
    lines = last_lines(printed, count=None)
    last = lines[-1] if lines else ""
    names = list(dict.fromkeys(name for line in lines if (name := _failed_test(line))))
    if not names:
        return last[:_LONGEST]
    shown = ", ".join(names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    summary = f"{last}: " if _failed_test(last) is None and not last.startswith("FAIL") else ""
    return f"{summary}{shown}{more}"[:_LONGEST]


def last_lines(printed: str, count: int | None = _LINES) -> list[str]:
    """Return the last lines that are not empty, without colours and rulers."""
    plain = (_RULER.sub("", _COLOUR.sub("", line)).rstrip() for line in printed.splitlines())
    lines = [line for line in plain if line.strip()]
    return lines if count is None else lines[-count:]


def log_lines(log: str) -> list[str]:
    """Return the last lines of a log; none if it was removed."""
    try:
        with Path(log).open("rb") as file:
            file.seek(max(file.seek(0, 2) - _TAIL, 0))
            return last_lines(file.read().decode("utf-8", "replace"))
    except OSError:
        # The log was removed; the failure is known without it.
        return []


def _failed_test(line: str) -> str | None:
    matches = (match for form in _FAILED if (match := form.fullmatch(line)))
    match = next(matches, None)
    return match[1].strip() if match else None
