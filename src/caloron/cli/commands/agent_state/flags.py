"""How the flags of `caloron agent-state` are read.

Standard library only, and little of it: this is read before every call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from caloron.agentstate.records import STATUSES, TERMINAL
from caloron.errors import UsageError

_MOST = 2**63 - 1


class Flag(NamedTuple):
    """One flag: how its value is read, and what it means."""

    name: str
    says: str
    read: Callable[[str, str], Any] | None
    required: bool = False


class Call(NamedTuple):
    """One thing that a script does."""

    says: str
    flags: tuple[Flag, ...] = ()
    example: str = ""
    positional: str = ""
    #: What a call without its positional or a required flag exits with.
    missing: int = 2
    #: What its help says besides, line by line.
    besides: tuple[str, ...] = ()


class MissingFlag(UsageError):
    """A flag that must be there is not; scaffold calls that a failure, all others a wrong use."""


def text(_flag: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{_flag} is no text that a file can hold") from None
    return value


def as_json(flag: str, value: str) -> str:
    """JSON, which is kept just as it was written."""
    _decoded(flag, text(flag, value))
    return value


def as_object(flag: str, value: str) -> dict[str, Any]:
    found = _decoded(flag, text(flag, value))
    if not isinstance(found, dict):
        raise UsageError(f"{flag} must be a JSON object, not {value[:40]!r}")
    return found


def _decoded(flag: str, value: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    try:
        return json.loads(value, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{flag} is not JSON: {error}", hint=f"it was {value[:80]!r}") from None


def positive(flag: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and int(value[:25]) > 0):
        raise UsageError(f"{flag} must be a positive whole number, not {value[:40]!r}")
    return min(int(value[:25]), _MOST)


def whole(flag: str, value: str) -> int:
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise UsageError(f"{flag} must be a whole number, not {value[:40]!r}")
    return int(value)


def seconds(flag: str, value: str) -> int:
    """Seconds, as the parse_time that the file counts in."""
    try:
        found = float(value)
    except ValueError:
        found = -1
    if not 0 <= found < 1e9:
        raise UsageError(f"{flag} must be a number of seconds, not {value[:40]!r}")
    return int(found * 1000)


def lease(flag: str, value: str) -> int:
    """Seconds that a claim holds: one that is over at once would be nobody's."""
    found = seconds(flag, value)
    if found < 1000:
        raise UsageError(f"{flag} must be 1 second or more, not {value[:40]!r}")
    return found


def status(flag: str, value: str) -> str:
    return _one_of(flag, value, STATUSES)


def terminal(flag: str, value: str) -> str:
    return _one_of(flag, value, TERMINAL)


def beginning(flag: str, value: str) -> str:
    return _one_of(flag, value, ("pending", "waiting_human"))


def as_form(flag: str, value: str) -> str:
    return _one_of(flag, value, ("text", "json", "table"))


def _one_of(flag: str, value: str, choices: Sequence[str]) -> str:
    if value not in choices:
        raise UsageError(f"{flag} must be one of {', '.join(choices)}, not {value[:40]!r}")
    return value


def parse(call: Call, words: Sequence[str]) -> dict[str, Any]:
    """The flags of a command line, read; keys without the dashes, the positional as `""`."""
    given: dict[str, Any] = {}
    flags = {flag.name: flag for flag in call.flags}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            if not call.positional or "" in given:
                raise UsageError(f"{word[:80]!r} is one word too many")
            given[""] = text("the argument", word)
            continue
        name, has_value, value = word.partition("=")
        flag = flags.get(name)
        if flag is None:
            known = ", ".join(flags) or "none"
            raise UsageError(f"there is no flag {name[:80]!r} here", hint=f"flags: {known}")
        if flag.read is None:
            given[name[2:]] = True
            continue
        if not has_value:
            if not rest or rest[0].startswith("--"):
                raise UsageError(f"{name} needs a value", hint=f"write {name}=VALUE")
            value = rest.pop(0)
        given[name[2:]] = flag.read(name, value)
    _require(call, given)
    return given


def _require(call: Call, given: dict[str, Any]) -> None:
    if call.positional and not given.get(""):
        raise UsageError(f"{call.positional} is missing")
    for flag in call.flags:
        if flag.required and given.get(flag.name[2:], "") == "":
            raise MissingFlag(f"{flag.name} is missing: {flag.says}")
