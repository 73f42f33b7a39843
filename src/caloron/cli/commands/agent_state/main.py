"""`caloron agent-state`: the commands of agent-state, with its lines and its exit codes.

Dispatched before anything heavy is imported: agents and hosts call this for every message.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from caloron.agentstate.records import encode
from caloron.cli.commands.agent_state.flags import MissingFlag, as_form, parse
from caloron.cli.commands.agent_state.place import (
    file,
    instance_dir,
    look,
    place,
    require_file,
    row,
)
from caloron.cli.commands.agent_state.words import CALLS, PROGRAM, usage
from caloron.errors import CaloronError, UsageError

REFUSED, WRONG_USE = 1, 2
_LONGEST = 4000
Given = dict[str, Any]
Say = Callable[[str], None]


class Line(NamedTuple):
    """A command line, taken apart."""

    script: str
    #: What the script is to do; some scripts do one thing only.
    sub: str
    #: The flags of that, with their values, and its argument.
    rest: Sequence[str]
    #: What `--output` says.
    form: str = "text"
    wants_help: bool = False


def main(words: Sequence[str], say: Say | None = None, complain: Say | None = None) -> int:
    """Run one call; the result is the exit code."""
    try:
        line = split(words)
    except UsageError as error:
        (complain or _to(sys.stderr))(f"error: {error}")
        return WRONG_USE
    if line.form == "json" and say is None:
        from caloron.cli.commands.agent_state.command import in_envelope

        return in_envelope(line)
    return run(line, say or _to(sys.stdout), complain or _to(sys.stderr))


def run(line: Line, say: Say, complain: Say) -> int:
    """Run a call that is taken apart."""
    complain = _plain(complain)
    script, sub = line.script, line.sub
    if line.wants_help:
        say(usage(script, sub))
        return 0
    calls = CALLS.get(script)
    if calls is None or sub not in calls:
        complain(f"error: {_not_known(script, sub)}")
        complain(usage(script))
        return WRONG_USE
    try:
        given = parse(calls[sub], line.rest)
        for answer in _HANDLERS[script](sub, given, complain):
            say(answer if isinstance(answer, str) else encode(answer))
    except CaloronError as error:
        complain(f"error: {error}")
        hint = error.hint
        if isinstance(error, UsageError):
            hint = hint or f"try: {' '.join(filter(None, (PROGRAM, script, sub)))} --help"
        if hint:
            complain(f"hint: {hint}")
        return _exit_code(error, calls[sub].missing)
    except BrokenPipeError:
        # Whoever reads has seen enough, as `head` has; what was asked for is done.
        return 0
    except OSError as error:
        complain(f"error: {error}")
        return REFUSED
    return 0


def _not_known(script: str, sub: str) -> str:
    if not script:
        return "no script was named"
    if script not in CALLS:
        return f"there is no script {script}; there are {', '.join(CALLS)}"
    choices = f"one of {', '.join(CALLS[script])}"
    return f"{script} has no {sub}; {choices}" if sub else f"{script} needs a command: {choices}"


def _exit_code(error: CaloronError, missing: int) -> int:
    own = getattr(error, "agent_state_exit", None)
    if own is not None:
        return int(own)
    if isinstance(error, MissingFlag):
        return missing
    return WRONG_USE if isinstance(error, UsageError) else REFUSED


def split(words: Sequence[str]) -> Line:
    """Take a command line apart; an option is one only where no value is expected."""
    names: list[str] = []
    rest: list[str] = []
    form, wants_help = "text", False
    left = list(words)
    while left:
        word = left.pop(0)
        if word in ("-h", "--help"):
            wants_help = True
        elif word in ("-o", "--output"):
            form = as_form(word, left.pop(0) if left else "")
        elif word.startswith("--output="):
            form = as_form("--output", word.removeprefix("--output="))
        elif word.startswith("-o"):
            form = as_form("-o", word.removeprefix("-o"))
        elif not word.startswith("-") and not _is_named(names):
            names.append(word)
        else:
            rest.append(word)
            if _takes_value(names, word) and left and not left[0].startswith("--"):
                rest.append(left.pop(0))
    script, sub = (*names, "", "")[:2]
    return Line(script, sub, rest, form, wants_help)


def _is_named(names: Sequence[str]) -> bool:
    """Whether it is known what is to be done."""
    return len(names) == 2 or (len(names) == 1 and "" in CALLS.get(names[0], {}))


def _takes_value(names: Sequence[str], word: str) -> bool:
    script, sub = (*names, "", "")[:2]
    call = CALLS.get(script, {}).get(sub)
    return call is not None and any(flag.name == word and flag.read for flag in call.flags)


def _plain(complain: Say) -> Say:
    """Messages repeat what was typed, but not a megabyte of it, nor what steers terminals."""

    def say(line: str) -> None:
        short = line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"
        complain("".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in short))

    return say


def _to(stream: Any) -> Say:
    def say(line: str) -> None:
        try:
            stream.write(f"{line}\n")
        except UnicodeEncodeError:
            stream.flush()
            stream.buffer.write(f"{line}\n".encode("utf-8", "backslashreplace"))

    return say


def _do_errands(sub: str, given: Given, complain: Say) -> Iterator[Any]:
    from caloron.cli.commands.agent_state.errands import do_errands

    return do_errands(sub, given, complain)


def _do_events(sub: str, given: Given, _complain: Say) -> Iterator[Any]:
    if sub == "tail":
        yield from look("tail", {"limit": given.get("limit", 50)})
    elif sub == "since":
        from caloron.agentstate.events import parse_time

        yield from look("since", {"since": parse_time(given[""])})
    else:
        from caloron.agentstate.database import open_database
        from caloron.agentstate.events import EventLog

        # A line about work that is nowhere makes no file for it.
        path = require_file() if given.get("work-item-id") else file()
        told = EventLog(open_database(path)).append(
            given["type"],
            given["payload"],
            actor=given.get("actor"),
            item=given.get("work-item-id"),
            key=given.get("key", ""),
        )
        if told is not None:
            yield row(told)


def _do_scaffold(_sub: str, given: Given, _complain: Say) -> Iterator[Any]:
    from caloron.agentstate.instance import scaffold

    where = place(given[""], "DIR")
    done = scaffold(where, given["host"], given["agent"], strict=bool(given.get("strict")))
    yield from (str(action) for action in done)


def _do_dashboard(_sub: str, _given: Given, _complain: Say) -> Iterator[Any]:
    from caloron.agentstate.dashboard import regenerate

    yield str(regenerate(instance_dir()))


def _do_retro(_sub: str, given: Given, complain: Say) -> Iterator[Any]:
    from caloron.agentstate.weekly_retro import write_weekly

    path, aside = write_weekly(instance_dir(), given.get("week"))
    if aside is not None:
        complain(f"note: {path.name} had been edited; that text is kept as {aside.name}")
    yield str(path)


def _do_hook(sub: str, _given: Given, _complain: Say) -> Iterator[Any]:
    from caloron.agentstate.hooks import run_hook

    yield from run_hook(sub, os.environ, instance_dir())


def _do_skill(_sub: str, given: Given, _complain: Say) -> Iterator[Any]:
    from caloron.agentstate.instance import install

    where = place(given[""], "DIR")
    yield from (str(action) for action in install(where, force=bool(given.get("force"))))


_HANDLERS: dict[str, Callable[[str, Given, Say], Iterator[Any]]] = {
    "scaffold": _do_scaffold,
    "errands": _do_errands,
    "events": _do_events,
    "dashboard": _do_dashboard,
    "retro": _do_retro,
    "hook": _do_hook,
    "skill": _do_skill,
}
