"""What a command says: text for people, or one ACLI envelope in JSON for machines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from caloron import __version__


@dataclass
class _Run:
    """The run of the program that is going on: what was called, when, and how it shall answer."""

    command: str = "caloron"
    json: bool = False
    started: float = field(default_factory=time.perf_counter)


_run = _Run()


def begin(arguments: Sequence[str]) -> None:
    """Start the clock, and find out the form of the answer before anything can go wrong."""
    _run.command = "caloron"
    _run.json = _asks_for_json(arguments)
    _run.started = time.perf_counter()


def called(command: str, form: str) -> None:
    """A command was recognised: failures carry its name from now on."""
    _run.command = command
    _run.json = form == "json"


def wants_json() -> bool:
    """Whether this run answers with an envelope."""
    return _run.json


def current_command() -> str:
    """The command that runs, as the envelope names it: `issue.list`."""
    return _run.command


def success(command: str, data: Mapping[str, Any], text: str) -> None:
    """Answer that all went well."""
    if _run.json:
        _print_envelope({"ok": True, "command": command, "data": data})
    elif text:
        click.echo(text)


def failure(
    command: str,
    code: str,
    message: str,
    *,
    hint: str = "",
    data: Mapping[str, Any] | None = None,
) -> None:
    """Answer that it did not; `data` says what there is to say all the same."""
    if not _run.json:
        click.echo(f"error: {message}", err=True)
        if hint:
            click.echo(f"hint: {hint}", err=True)
        return
    envelope: dict[str, Any] = {"ok": False, "command": command}
    if data is not None:
        envelope["data"] = data
    envelope["error"] = {"code": code, "message": message} | ({"hint": hint} if hint else {})
    _print_envelope(envelope)


def printable(text: str) -> str:
    """Text of others without the characters that could steer a terminal."""
    return "".join(c if c in "\n\t" or c.isprintable() else "�" for c in text)


def is_terminal() -> bool:
    return sys.stdout.isatty()


def _print_envelope(envelope: dict[str, Any]) -> None:
    elapsed = round((time.perf_counter() - _run.started) * 1000)
    click.echo(json.dumps(envelope | {"meta": {"duration_ms": elapsed, "version": __version__}}))


def _asks_for_json(arguments: Sequence[str]) -> bool:
    asked = False
    previous = ""
    for argument in arguments:
        if argument == "--":
            break
        if previous in ("-o", "--output"):
            asked = argument == "json"
        elif argument.startswith("--output="):
            asked = argument == "--output=json"
        elif argument.startswith("-o") and argument != "-o":
            asked = argument == "-ojson"
        previous = argument
    return asked
