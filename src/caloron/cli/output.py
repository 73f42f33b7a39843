"""The output of a command: text for people, or one ACLI envelope in JSON."""

from __future__ import annotations

import json
import os
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
#: `table` is another name of `text`, where lists are tables.
FORMATS = ("text", "json", "table")
COLORS = ("auto", "always", "never")
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
    color: str = "auto"
    no_pager: bool = False


_call = _Call()


def start(arguments: Sequence[str]) -> None:
    """Start the clock, and read the output format before anything can fail."""
    global _call  # noqa: PLW0603
    _call = _Call(format=_requested_format(arguments))


def set_command(command: str, form: str) -> None:
    """Set the command that the envelopes of this call name, and their format."""
    _call.command = command
    _call.format = form


def set_screen(**settings: Any) -> None:
    """Set `color` and `no_pager` of this call."""
    for name, value in settings.items():
        setattr(_call, name, value)


def wants_json() -> bool:
    return _call.format == "json"


def current_command() -> str:
    """The running command as the envelope names it: `issue.list`."""
    return _call.command


def success(command: str, data: Mapping[str, Any], text: Text, *, raw: bool = False) -> None:
    """Print a result; `raw` text is for another program, byte for byte."""
    if wants_json():
        _print_envelope({"ok": True, "command": command, "data": data})
    elif shown := text_of(text, raw=raw):
        shown = shown if raw else colored(shown, sys.stdout)
        if not _pager(shown):
            _echo(shown, sys.stdout, raw=True)


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
    else:
        _echo(printable("\n".join(map(_planned, actions)) or "would change nothing"), sys.stdout)
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
        lines = [f"error: {_shortened(printable(message))}"]
        lines += [f"hint: {_shortened(printable(hint))}"] if hint else []
        _echo("\n".join(lines), sys.stderr)
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

    _echo(fitted(text), sys.stderr)


def note_once(text: str) -> None:
    """Print a note, unless this call of the program has printed it before."""
    if text not in _call.notes:
        _call.notes.add(text)
        note(text)


def is_terminal() -> bool:
    return sys.stdout.isatty()


#: Words of state by color, where they fill a cell of a table or begin a line with a colon.
_WORDS = {
    "31": "error|FAIL|failed|Escalated|red|damaged|halted|refused",
    "32": "ok|Done|done|passed|green|success|merged|approved",
    "33": "hint|warning|WARNING|note|stopped|skipped|waiting|Blocked|paused|partial",
    "36": "running|Running|Doing|In progress|open",
}
_COLORS = {word: code for code, words in _WORDS.items() for word in words.split("|")}


def use_color(stream: Any) -> bool:
    """True if text on this stream is colored."""
    if _call.color != "auto":
        return _call.color == "always"
    if os.environ.get("NO_COLOR") or os.environ.get("CLICOLOR") == "0":
        return False
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def colored(text: str, stream: Any = None) -> str:
    """The text with colored words of state; the words say the same without color."""
    if not use_color(stream or sys.stdout):
        return text
    import re

    words = "|".join(_COLORS)
    pattern = rf"(?m)(?:^|(?<=  ))(?:{words})(?=  |$|: )"
    return re.sub(pattern, lambda word: f"\x1b[{_COLORS[word[0]]}m{word[0]}\x1b[0m", text)


def _pager(text: str) -> bool:
    """Show text that is longer than the terminal in $PAGER; False if there is no need."""
    if _call.no_pager or not (is_terminal() and sys.stdin is not None and sys.stdin.isatty()):
        return False
    import shlex
    import shutil
    import subprocess

    program = shlex.split(os.environ.get("PAGER", "less"))
    if os.environ.get("TERM") == "dumb" or not program or not shutil.which(program[0]):
        return False
    if text.count("\n") + 1 < shutil.get_terminal_size().lines:
        return False
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, env={"LESS": "FRX"} | os.environ
    ) as process:
        try:
            process.communicate(f"{text}\n".encode("utf-8", "replace"))
        except KeyboardInterrupt:
            # The pager handles Ctrl-C itself.
            process.wait()
    return True


def _echo(text: str, stream: Any, *, raw: bool = False) -> None:
    """Print text, also text that came from bytes which are not UTF-8."""
    shown = text if raw else colored(text, stream)
    click.echo(shown.encode("utf-8", "replace").decode(), file=stream, color=True)


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
