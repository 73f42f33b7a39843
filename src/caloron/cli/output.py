"""What a command says: text or a table for people, or one ACLI envelope in JSON for machines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from caloron import __version__

#: The exit code of a dry run.
DRY_RUN = 9
FORMS = ("text", "json", "table")
#: Raised when a published field changes its name or its type.
SCHEMA = 2
_WIDEST_CELL = 60
_LONGEST_MESSAGE = 4000


@dataclass
class _Run:
    """The run of the program that is going on: what was called, when, and how it shall answer."""

    command: str = "caloron"
    form: str = "text"
    started: float = field(default_factory=time.perf_counter)
    #: Asides that one run prints once, however often their reason comes up.
    asides: set[str] = field(default_factory=set)


_run = _Run()


def begin(arguments: Sequence[str]) -> None:
    """Start the clock, and find out the form of the answer before anything can go wrong."""
    _run.command = "caloron"
    _run.form = _asked_form(arguments)
    _run.started = time.perf_counter()
    _run.asides = set()


def called(command: str, form: str) -> None:
    """A command was recognised: failures carry its name from now on."""
    _run.command = command
    _run.form = form


def wants_json() -> bool:
    """Whether this run answers with an envelope."""
    return _run.form == "json"


def current_command() -> str:
    """The command that runs, as the envelope names it: `issue.list`."""
    return _run.command


def success(command: str, data: Mapping[str, Any], text: str, *, raw: bool = False) -> None:
    """Answer that all went well; `raw` text is for another program, byte for byte."""
    if wants_json():
        _print_envelope({"ok": True, "command": command, "data": data})
    elif _run.form == "table" and (rows := _rows(data)):
        _say(table(rows))
    elif text:
        _say(text if raw else printable(text))


def dry_run(command: str, actions: Sequence[Mapping[str, Any]]) -> int:
    """Answer what would be done, each with `action` and `target`; the result is the exit code."""
    if wants_json():
        envelope = {"ok": True, "command": command, "dry_run": True}
        _print_envelope(envelope | {"planned_actions": [dict(action) for action in actions]})
    elif _run.form == "table" and actions:
        _say(table(actions))
    else:
        _say("\n".join(map(_planned, actions)) or "would change nothing")
    return DRY_RUN


def _planned(action: Mapping[str, Any]) -> str:
    much = f" ({size(action['bytes'])})" if "bytes" in action else ""
    return printable(f"would {action['action']} {action['target']}{much}")


def failure(
    command: str,
    code: str,
    message: str,
    *,
    hint: str = "",
    data: Mapping[str, Any] | None = None,
) -> None:
    """Answer that it did not; `data` says what there is to say all the same."""
    if not wants_json():
        click.echo(f"error: {_short(printable(message))}", err=True)
        if hint:
            click.echo(f"hint: {_short(printable(hint))}", err=True)
        return
    envelope: dict[str, Any] = {"ok": False, "command": command}
    if data is not None:
        envelope["data"] = data
    envelope["error"] = {"code": code, "message": _short(message)}
    if hint:
        envelope["error"]["hint"] = _short(hint)
    _print_envelope(envelope)


def stopped(command: str, message: str, *, resume: str, data: Mapping[str, Any]) -> None:
    """Answer that something ended before its end because a person asked for that: no error."""
    if wants_json():
        failure(command, "STOPPED", message, hint=resume, data=data)
    else:
        _say(printable(f"{message}.\nGo on with: {resume}"))


def aside(text: str) -> None:
    """Tell something beside the answer, wherever that goes."""
    from caloron.cli.screen import fitted

    click.echo(fitted(printable(text)).encode("utf-8", "replace").decode(), err=True)


def aside_once(text: str) -> None:
    """Print an aside, unless this run of the program has printed it before."""
    if text not in _run.asides:
        _run.asides.add(text)
        aside(text)


def printable(text: str) -> str:
    """Text of others without the characters that could steer a terminal."""
    return "".join(c if c in "\n\t" or c.isprintable() else "�" for c in text)


def counted(number: int, thing: str) -> str:
    """So many things, in the number that English has for that."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows under the names of their fields, aligned; a field that is itself a table is left out."""
    names = [name for name in dict.fromkeys(n for row in rows for n in row) if _fits(rows, name)]
    from caloron.cli.screen import aligned

    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    return "\n".join(aligned([[name.upper() for name in names], *cells]))


def _rows(data: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The list that the answer is about: the first that holds records."""
    for value in data.values():
        if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
            return value
    return ()


def _fits(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    values = [row.get(name) for row in rows]
    parts = [part for value in values for part in (value if isinstance(value, list) else [value])]
    return not any(isinstance(part, Mapping | list) for part in parts)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    line = " ".join(printable(text).split())
    return line if len(line) <= _WIDEST_CELL else line[: _WIDEST_CELL - 1] + "…"


def size(count: int) -> str:
    """A number of bytes as people say it."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 10 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def is_terminal() -> bool:
    return sys.stdout.isatty()


def _say(text: str) -> None:
    """Print text, also such that came from bytes which are no text."""
    click.echo(text.encode("utf-8", "replace").decode())


def _short(text: str) -> str:
    """A message that names what was typed, without the megabyte that was typed."""
    if len(text) <= _LONGEST_MESSAGE:
        return text
    half = _LONGEST_MESSAGE // 2
    return f"{text[:half]} … {text[-half:]}"


def _print_envelope(envelope: dict[str, Any]) -> None:
    elapsed = round((time.perf_counter() - _run.started) * 1000)
    meta = {"duration_ms": elapsed, "version": __version__, "schema": SCHEMA}
    click.echo(json.dumps(envelope | {"meta": meta}))


def _asked_form(arguments: Sequence[str]) -> str:
    asked = "text"
    previous = ""
    for argument in arguments:
        if argument == "--":
            break
        if previous in ("-o", "--output"):
            asked = argument
        elif argument.startswith("--output="):
            asked = argument.removeprefix("--output=")
        elif argument.startswith("-o") and argument != "-o":
            asked = argument.removeprefix("-o")
        previous = argument
    return asked
