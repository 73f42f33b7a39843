"""The lines of a program's output that people and later prompts see.

The closing words of an agent's answer: it ends with the feedback block that every prompt asks for,
a planner's with a code fence, and the output of an agent CLI may be JSON; none of these describes
the result of the work. And the output of a failed verification, shortened.
Standard library only: the shim of every attempt uses it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

#: The end of an answer or a log that is read: characters, or bytes.
_TAIL = 1 << 16
_LONGEST = 500
_LONGEST_DESCRIPTION = 3000
_SUMMARY = re.compile(
    r"[ \t]*(?:#{1,6}[ \t]*|\*\*)summary[ \t]*:?(?:\*\*)?:?[ \t#]*", re.IGNORECASE
)
#: At most this many lines are tried as the beginning of a JSON value, because each try costs time.
_MAX_VALUES = 200
_FENCE = re.compile(r"[ \t>]*(`{3,}|~{3,})[ \t]*(\S*)")
_KEYS = (
    "caloron_feedback", "task_id", "agent_role", "task_clarity", "blockers", "tools_used",
    "tokens_consumed", "time_to_complete_min", "self_assessment", "notes",
)  # fmt: skip
_KEY = re.compile(rf"[\s>*-]*[\"'`*]*({'|'.join(_KEYS)})[\"'`*]*[ \t]*[:=]", re.IGNORECASE)
_HEAD = re.compile(r"[\s>*-]*[\"'`*]*caloron_feedback\b", re.IGNORECASE)
_MARKER = re.compile(r"CALORON_FEEDBACK_(?:START|END)")
_WORD = re.compile(r"\w")
_BORDER = re.compile(r"-{3,}|(`{3,}|~{3,})\w*")


def closing_words(answer: str) -> str:
    """Return the last line of prose in an answer, or an empty text if there is none.

    Feedback blocks, JSON and code fences are no prose. Lines in fences count only if there are none
    outside.
    """
    prose, fenced = _parts(answer[-_TAIL:])
    return _last(prose) or _last(fenced)


def description(answer: str) -> str:
    """Return what an agent says about its change at the end of its answer, as Markdown.

    That is the text under its last heading `Summary`; without one, the last paragraphs. Feedback
    blocks and JSON are no text for people.
    """
    lines = answer[-_TAIL:].splitlines()
    inside = feedback_in(lines)
    lines = _without_json(
        [line for line, of_block in zip(lines, inside, strict=True) if not of_block]
    )
    begins = [at + 1 for at, line in enumerate(lines) if _SUMMARY.fullmatch(line)]
    text = "\n".join(lines[begins[-1] if begins else 0 :]).strip()
    if len(text) <= _LONGEST_DESCRIPTION:
        return text
    if begins:
        return text[: _LONGEST_DESCRIPTION - 1].rstrip() + "…"
    _, blank, end = text[-_LONGEST_DESCRIPTION:].partition("\n\n")
    return (end if blank else text[-_LONGEST_DESCRIPTION:]).strip()


def feedback_in(lines: Sequence[str]) -> list[bool]:
    """Mark the lines of feedback blocks, with the empty lines, rules or fences around them."""
    inside = list(_of_blocks(lines, headless=False))
    for step in (1, -1):
        beside = False
        for at in range(len(lines))[::step]:
            line = lines[at].strip()
            beside = inside[at] or (beside and (not line or bool(_BORDER.fullmatch(line))))
            inside[at] = beside
    return inside


def _parts(answer: str) -> tuple[list[str], list[str]]:
    """Return the lines outside and inside of code fences."""
    prose: list[str] = []
    fenced: list[str] = []
    opened: list[str] | None = None
    for line in answer.splitlines():
        fence = _FENCE.match(line)
        if fence and (opened is None or fence[2]):
            # A fence with a language always opens: the one before it was never closed.
            prose += opened or ()
            opened = []
        elif fence:
            fenced += opened or ()
            opened = None
        else:
            (prose if opened is None else opened).append(line)
    return prose + (opened or []), fenced


def _last(lines: list[str]) -> str:
    spoken = [line for line in _without_blocks(_without_json(lines)) if _WORD.search(line)]
    return " ".join(spoken[-1].split())[:_LONGEST] if spoken else ""


def _without_json(lines: list[str]) -> list[str]:
    """Return the lines without JSON values, complete or cut off."""
    kept: list[str] = []
    tried = at = 0
    while at < len(lines):
        line = lines[at].lstrip()
        length = 0
        if line.startswith(("{", "[")) and tried < _MAX_VALUES:
            tried += 1
            length = _json_lines(lines[at:])
        if not length:
            kept.append(lines[at])
        at += length or 1
    return kept


def _json_lines(lines: list[str]) -> int:
    """Return the number of lines of a JSON value that begins at the first one; 0: no value."""
    text = "\n".join(lines)
    start = len(text) - len(text.lstrip())
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        # The line of a protocol is cut where it is too long to be kept.
        return int(lines[0].lstrip().startswith(('{"', '[{"')))
    if isinstance(value, list) and not any(isinstance(part, dict | list) for part in value):
        # A list of plain values may be a remark in brackets.
        return 0
    return text.count("\n", 0, end) + 1


def _without_blocks(lines: list[str]) -> Iterator[str]:
    inside = _of_blocks(lines, headless=True)
    return (line for line, of_block in zip(lines, inside, strict=True) if not of_block)


def _of_blocks(lines: Sequence[str], *, headless: bool) -> Iterator[bool]:
    """Mark the lines of feedback blocks: their keys, and the indented lines below.

    `headless`: also blocks whose first line is missing.
    """
    inside = False
    for line in lines:
        if _HEAD.match(line) or (inside and _KEY.match(line)):
            inside = True
        elif not inside or (line.strip() and not line.startswith((" ", "\t", "- "))):
            inside = headless and bool(_starts_block(line))
        yield inside or bool(_MARKER.search(line))


def _starts_block(line: str) -> re.Match[str] | None:
    """Match the first line of a block without its head, by a key that only a block has."""
    match = _KEY.match(line)
    return match if match and match[1].lower() not in ("notes", "blockers") else None


_LINES = 15
_NAMED = 3
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
