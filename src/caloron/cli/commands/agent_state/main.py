"""`caloron agent-state`: the commands of agent-state, with its lines and its exit codes.

Dispatched before anything heavy is imported: agents and hosts call this for every message.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from caloron.agentstate.records import encode
from caloron.cli.commands.agent_state.calls import (
    CALLS,
    PROGRAM,
    MissingFlag,
    as_form,
    parse,
    usage,
)
from caloron.errors import CaloronError, NotFound, UsageError

REFUSED, WRONG_USE = 1, 2
_LONGEST = 4000
#: The values of flags by name, or a row of the answer.
Values = dict[str, Any]
#: Prints one line.
Print = Callable[[str], None]


class Line(NamedTuple):
    """A command line that was split."""

    script: str
    #: The command of the script; empty for a script that has only one.
    sub: str
    #: Its flags with their values, and its argument.
    rest: Sequence[str]
    #: The value of `--output`.
    form: str = "text"
    wants_help: bool = False


def main(words: Sequence[str], answer: Print | None = None, complain: Print | None = None) -> int:
    """Run one call and return its exit code."""
    try:
        line = split(words)
    except UsageError as error:
        (complain or _to(sys.stderr))(f"error: {error}")
        return WRONG_USE
    if line.form == "json" and answer is None:
        from caloron.cli.commands.agent_state.command import in_envelope

        return in_envelope(line)
    return run(line, answer or _to(sys.stdout), complain or _to(sys.stderr))


def run(line: Line, answer: Print, complain: Print) -> int:
    """Run a split call and return its exit code."""
    complain = _plain(complain)
    script, sub = line.script, line.sub
    if line.wants_help:
        answer(usage(script, sub))
        return 0
    calls = CALLS.get(script)
    if calls is None or sub not in calls:
        complain(f"error: {_not_known(script, sub)}")
        complain(usage(script))
        return WRONG_USE
    try:
        values = parse(calls[sub], line.rest)
        for row in _SCRIPTS[script](sub, values, complain):
            answer(row if isinstance(row, str) else encode(row))
    except CaloronError as error:
        complain(f"error: {error}")
        hint = error.hint
        if isinstance(error, UsageError):
            hint = hint or f"try: {' '.join(filter(None, (PROGRAM, script, sub)))} --help"
        if hint:
            complain(f"hint: {hint}")
        return _exit_code(error, calls[sub].missing)
    except BrokenPipeError:
        # The reader, such as `head`, has enough lines; the call itself is done.
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
    """Split a command line; an option is one only where no value is expected."""
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
    """True if the script and its command are known."""
    return len(names) == 2 or (len(names) == 1 and "" in CALLS.get(names[0], {}))


def _takes_value(names: Sequence[str], word: str) -> bool:
    script, sub = (*names, "", "")[:2]
    call = CALLS.get(script, {}).get(sub)
    return call is not None and any(flag.name == word and flag.read for flag in call.flags)


def _plain(complain: Print) -> Print:
    """Shorten messages, which repeat arguments, and replace what could control a terminal."""

    def print_plain(line: str) -> None:
        short = line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"
        complain("".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in short))

    return print_plain


def _to(stream: Any) -> Print:
    def print_line(line: str) -> None:
        try:
            stream.write(f"{line}\n")
        except UnicodeEncodeError:
            stream.flush()
            stream.buffer.write(f"{line}\n".encode("utf-8", "backslashreplace"))

    return print_line


def _path(argument: str, name: str) -> Path:
    """A folder; `~` is the home of the user also where no shell has replaced it."""
    path = os.path.expanduser(argument)  # noqa: PTH111 - that of Path raises for an unknown user
    if path.startswith("~"):
        raise UsageError(
            f"{name} is {argument[:80]!r}, and there is no such user",
            hint="write the whole path; a folder whose name begins with ~ is ./~…",
        )
    return Path(path).absolute()


def _instance_dir() -> Path:
    """`$MF_INSTANCE_DIR`, or the current folder."""
    return _path(os.environ.get("MF_INSTANCE_DIR") or ".", "MF_INSTANCE_DIR")


def _file() -> Path:
    return _instance_dir() / "state.sqlite"


def _existing_file() -> Path:
    """The database; only `enqueue` and events without a work item may create it."""
    from caloron.agentstate.database import require_database

    return require_database(_instance_dir())


def _select(query: str, **values: Any) -> Iterator[Values]:
    """The rows of a query, one by one; nothing is created, migrated or locked."""
    from caloron.agentstate.database import read_rows

    return read_rows(_file(), query, values)


def _row(record: Any) -> Values:
    values: Values = record._asdict()
    return values


#: The parameters of `WorkItems` whose names are not those of the flags.
_PARAMETERS = {
    "id": "item",
    "lease-s": "lease_ms",
    "delay-s": "delay_ms",
    "threshold-s": "threshold_ms",
    "notes-json": "patch",
}


def _errands(sub: str, values: Values, complain: Print) -> Iterator[Any]:
    """The queue of an agent."""
    if sub == "list":
        filters = {name: values.get(name) for name in ("kind", "status", "owner")}
        yield from _select("list", **filters, limit=values.get("limit", 200))
    elif sub == "pending":
        yield from _select("pending", kind=values.get("kind"))
    elif sub == "get":
        row = next(_select("get", item=values["id"]), None)
        if row is None:
            raise NotFound(f"there is no work item {values['id']}", hint="errands list shows them")
        yield row
    elif sub != "replay" or _file().exists():
        yield from _work_items(sub, values, complain)


def _work_items(sub: str, values: Values, complain: Print) -> Iterator[Any]:
    """Call the method of `WorkItems` that the command is named after."""
    from caloron.agentstate.database import open_database
    from caloron.agentstate.work_items import WorkItems

    work = WorkItems(open_database(_file() if sub == "enqueue" else _existing_file()))
    with_lease = values.pop("show-lease", False) or sub == "next"
    arguments = {
        _PARAMETERS.get(name, name.replace("-", "_")): value for name, value in values.items()
    }
    done: Any
    if sub == "next":
        kinds = [kind for kind in arguments.pop("kind", "").split(",") if kind]
        done = work.claim_next(kinds=kinds, **arguments)
    elif sub == "notes":
        done = work.earlier_notes(**arguments)
    else:
        done = getattr(work, sub)(**arguments)
    match sub:
        case "enqueue":
            answer: Values = {"inserted": done.inserted, "row": _row(done.item)}
            if done.differs:
                answer["differs"] = list(done.differs)
                known = f"{done.item.id} is known with another {' and '.join(done.differs)}"
                complain(f"warning: {known}")
            yield answer
        case "claim" | "next":
            if done is not None:
                row, lease = _row(done.item), _row(done.lease)
                yield {"row": row, "lease": lease} if with_lease else row
        case "replay":
            yield from ({"row": _row(i.item), "why": i.why, "attempt": i.attempt} for i in done)
        case "notes":
            yield from ({"at": at, "notes": notes} for at, notes in done)
        case _:
            yield _row(done)


def _events(sub: str, values: Values, _complain: Print) -> Iterator[Any]:
    if sub == "tail":
        yield from _select("tail", limit=values.get("limit", 50))
    elif sub == "since":
        from caloron.agentstate.events import parse_time

        yield from _select("since", since=parse_time(values[""]))
    else:
        from caloron.agentstate.database import open_database
        from caloron.agentstate.events import EventLog

        # An event about a work item that does not exist creates no file.
        path = _existing_file() if values.get("work-item-id") else _file()
        event = EventLog(open_database(path)).append(
            values["type"],
            values["payload"],
            actor=values.get("actor"),
            item=values.get("work-item-id"),
            key=values.get("key", ""),
        )
        if event is not None:
            yield _row(event)


def _scaffold(_sub: str, values: Values, _complain: Print) -> Iterator[str]:
    from caloron.agentstate.instance import scaffold

    strict = bool(values.get("strict"))
    done = scaffold(_path(values[""], "DIR"), values["host"], values["agent"], strict=strict)
    return map(str, done)


def _dashboard(_sub: str, _values: Values, _complain: Print) -> Iterator[str]:
    from caloron.agentstate.dashboard import regenerate

    yield str(regenerate(_instance_dir()))


def _retro(_sub: str, values: Values, complain: Print) -> Iterator[str]:
    from caloron.agentstate.weekly_retro import write_weekly

    path, aside = write_weekly(_instance_dir(), values.get("week"))
    if aside is not None:
        complain(f"note: {path.name} had been edited; that text is kept as {aside.name}")
    yield str(path)


def _hook(sub: str, _values: Values, _complain: Print) -> Iterator[Any]:
    from caloron.agentstate.hooks import run_hook

    return iter(run_hook(sub, os.environ, _instance_dir()))


def _skill(_sub: str, values: Values, _complain: Print) -> Iterator[str]:
    from caloron.agentstate.instance import install

    return map(str, install(_path(values[""], "DIR"), force=bool(values.get("force"))))


_SCRIPTS: dict[str, Callable[[str, Values, Print], Iterator[Any]]] = {
    "scaffold": _scaffold,
    "errands": _errands,
    "events": _events,
    "dashboard": _dashboard,
    "retro": _retro,
    "hook": _hook,
    "skill": _skill,
}
