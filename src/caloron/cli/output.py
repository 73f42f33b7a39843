"""The output of a command: text or a table for people, or one ACLI envelope in JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from caloron import __version__
from caloron.cli.format import printable, size

#: The exit code of a dry run.
DRY_RUN = 9
FORMATS = ("text", "json", "table")
#: Raised when a published field changes its name or its type.
SCHEMA = 3
_LONGEST_MESSAGE = 4000
#: The text of an answer: as it is to be printed, or lines that a narrow terminal may fold, or a
#: function that returns either, called only if the text is printed.
Text = str | Sequence[str] | Callable[[], str | Sequence[str]]


@dataclass
class _Call:
    """The current call of the program: its command, its output format, and its start time."""

    command: str = "caloron"
    format: str = "text"
    started: float = field(default_factory=time.perf_counter)
    #: Notes that are printed once per call.
    notes: set[str] = field(default_factory=set)


_call = _Call()


def start(arguments: Sequence[str]) -> None:
    """Start the clock, and read the output format before anything can fail."""
    _call.command = "caloron"
    _call.format = _requested_format(arguments)
    _call.started = time.perf_counter()
    _call.notes = set()


def set_command(command: str, form: str) -> None:
    """Set the command that the envelopes of this call name, and their format."""
    _call.command = command
    _call.format = form


def wants_json() -> bool:
    return _call.format == "json"


def current_command() -> str:
    """The running command as the envelope names it: `issue.list`."""
    return _call.command


def success(command: str, data: Mapping[str, Any], text: Text, *, raw: bool = False) -> None:
    """Print a result; `raw` text is for another program, byte for byte."""
    if wants_json():
        _print_envelope({"ok": True, "command": command, "data": data})
    elif _call.format == "table" and (rows := _records(data)):
        _print_table(rows)
    elif shown := text_of(text, raw=raw):
        _print(shown)


def text_of(text: Text, *, raw: bool = False) -> str:
    """The text of an answer as it is printed."""
    text = text() if callable(text) else text
    if isinstance(text, str):
        return text if raw else printable(text)
    from caloron.cli.render import fitted

    return fitted("\n".join(text))


def dry_run(command: str, actions: Sequence[Mapping[str, Any]]) -> int:
    """Print the planned actions, each with `action` and `target`; returns the exit code."""
    if wants_json():
        envelope = {"ok": True, "command": command, "dry_run": True}
        _print_envelope(envelope | {"planned_actions": [dict(action) for action in actions]})
    elif _call.format == "table" and actions:
        _print_table(actions)
    else:
        _print(printable("\n".join(map(_planned, actions)) or "would change nothing"))
    return DRY_RUN


def _planned(action: Mapping[str, Any]) -> str:
    amount = f" ({size(action['bytes'])})" if "bytes" in action else ""
    return f"would {action['action']} {action['target']}{amount}"


def failure(
    command: str,
    code: str,
    message: str,
    *,
    hint: str = "",
    data: Mapping[str, Any] | None = None,
) -> None:
    """Print an error: as text on standard error, as an envelope with what `data` there is."""
    if not wants_json():
        click.echo(f"error: {_shortened(printable(message))}", err=True)
        if hint:
            click.echo(f"hint: {_shortened(printable(hint))}", err=True)
        return
    envelope: dict[str, Any] = {"ok": False, "command": command}
    if data is not None:
        envelope["data"] = data
    envelope["error"] = {"code": code, "message": _shortened(message)}
    if hint:
        envelope["error"]["hint"] = _shortened(hint)
    _print_envelope(envelope)


def note(text: str) -> None:
    """Print a note on standard error, whatever the output format."""
    from caloron.cli.render import fitted

    click.echo(fitted(text).encode("utf-8", "replace").decode(), err=True)


def note_once(text: str) -> None:
    """Print a note, unless this call of the program has printed it before."""
    if text not in _call.notes:
        _call.notes.add(text)
        note(text)


def is_terminal() -> bool:
    return sys.stdout.isatty()


def _print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    from caloron.cli.render import table

    _print(table(rows))


def _records(data: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The first list of records in the data."""
    for value in data.values():
        if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
            return value
    return ()


def _print(text: str) -> None:
    """Print text, also text that came from bytes which are not UTF-8."""
    click.echo(text.encode("utf-8", "replace").decode())


def _shortened(text: str) -> str:
    """Cut a message that quotes a very long argument."""
    if len(text) <= _LONGEST_MESSAGE:
        return text
    half = _LONGEST_MESSAGE // 2
    return f"{text[:half]} … {text[-half:]}"


def _print_envelope(envelope: dict[str, Any]) -> None:
    elapsed = round((time.perf_counter() - _call.started) * 1000)
    meta = {"duration_ms": elapsed, "version": __version__, "schema": SCHEMA}
    click.echo(json.dumps(envelope | {"meta": meta}))


def _requested_format(arguments: Sequence[str]) -> str:
    requested, previous = "text", ""
    for argument in arguments:
        if argument == "--":
            break
        if previous in ("-o", "--output"):
            requested = argument
        elif argument.startswith("--output="):
            requested = argument.removeprefix("--output=")
        elif argument.startswith("-o") and argument != "-o":
            requested = argument.removeprefix("-o")
        previous = argument
    return requested
