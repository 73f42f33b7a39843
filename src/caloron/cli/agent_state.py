"""`caloron agent-state`: the commands of agent-state, with its lines and its exit codes.

Dispatched before anything heavy is imported: agents and hosts call this for every message.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caloron.agentstate.notes import encode
from caloron.cli.agent_state_words import CALLS, PROGRAM, MissingFlag, parse, usage
from caloron.errors import CaloronError, NotFound, UsageError

if TYPE_CHECKING:
    from caloron.agentstate.errands import Errands
    from caloron.agentstate.records import Held

REFUSED, WRONG_USE = 1, 2
_LONGEST = 4000
Given = dict[str, Any]
Say = Callable[[str], None]


def main(words: Sequence[str], say: Say | None = None, complain: Say | None = None) -> int:
    """Run one call; the result is the exit code."""
    say, complain = say or _to(sys.stdout), _plain(complain or _to(sys.stderr))
    script, sub, rest = split(words)
    if "--help" in words or "-h" in words:
        say(usage(script, sub))
        return 0
    calls = CALLS.get(script)
    if calls is None or sub not in calls:
        asked = " ".join(filter(None, (script, sub)))
        complain(f"error: there is no {asked}" if asked else "error: no script was named")
        complain(usage(script))
        return WRONG_USE
    try:
        given = parse(calls[sub], rest)
        for line in _HANDLERS[script](sub, given, complain):
            say(line if isinstance(line, str) else encode(line))
    except CaloronError as error:
        complain(f"error: {error}")
        hint = error.hint
        if isinstance(error, UsageError):
            hint = hint or f"try: {' '.join(filter(None, (PROGRAM, script, sub)))} --help"
        if hint:
            complain(f"hint: {hint}")
        return _exit_code(error, calls[sub].missing)
    except OSError as error:
        complain(f"error: {error}")
        return REFUSED
    return 0


def _exit_code(error: CaloronError, missing: int) -> int:
    own = getattr(error, "agent_state_exit", None)
    if own is not None:
        return int(own)
    if isinstance(error, MissingFlag):
        return missing
    return WRONG_USE if isinstance(error, UsageError) else REFUSED


def split(words: Sequence[str]) -> tuple[str, str, Sequence[str]]:
    """The script, what it is to do, and the rest; some scripts do one thing only."""
    script = words[0] if words and not words[0].startswith("-") else ""
    if script in CALLS and "" in CALLS[script]:
        return script, "", words[1:]
    sub = words[1] if len(words) > 1 and not words[1].startswith("-") else ""
    return script, sub, words[2:]


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


def instance_dir() -> Path:
    """`$MF_INSTANCE_DIR`, or where one stands."""
    return Path(os.environ.get("MF_INSTANCE_DIR") or ".").absolute()


def _file() -> Path:
    return instance_dir() / "state.sqlite"


# Only looking: nothing is made, brought up to date or locked.


def _look(name: str, values: Given) -> Iterator[Given]:
    """The rows of a query, one by one, however many there are."""
    from caloron.agentstate.looking import look

    yield from look(_file(), name, values)


def _list(given: Given) -> Iterator[Given]:
    values = {name: given.get(name) for name in ("kind", "status", "owner")}
    return _look("list", values | {"limit": given.get("limit", 200)})


def _pending(given: Given) -> Iterator[Given]:
    return _look("pending", {"kind": given.get("kind")})


def _get(given: Given) -> Iterator[Given]:
    found = next(_look("get", {"item": given["id"]}), None)
    if found is None:
        raise NotFound(f"there is no work item {given['id']}", hint="errands list shows them")
    yield found


# What changes something.


def _errands(*, make: bool = False) -> Errands:
    """The queue of the agent; only what is handed in may make the file."""
    from caloron.agentstate.errands import Errands
    from caloron.agentstate.file import open_file

    if not make and not _file().exists():
        raise NotFound(f"there is no {_file()}", hint="set MF_INSTANCE_DIR, or scaffold it first")
    return Errands(open_file(_file()))


def _row(record: Any) -> Given:
    row: Given = record._asdict()
    return row


def _with_lease(held: Held) -> Given:
    return {"row": _row(held.errand), "lease": _row(held.lease)}


def _lease_of(given: Given) -> Given:
    return {"lease_ms": max(1000, given["lease-s"])} if "lease-s" in given else {}


def _enqueue(given: Given, complain: Say) -> Given:
    done = _errands(make=True).enqueue(
        given["id"],
        given["kind"],
        given["payload"],
        owner=given.get("owner"),
        notes=given.get("notes"),
        status=given.get("status", "pending"),
        priority=given.get("priority", 0),
        delay_ms=given.get("delay-s", 0),
    )
    told: Given = {"inserted": done.inserted, "row": _row(done.errand)}
    if done.differs:
        told["differs"] = list(done.differs)
        complain(f"warning: {given['id']} is known with another {' and '.join(done.differs)}")
    return told


def _claim(given: Given, _complain: Say) -> Given:
    held = _errands().claim(given["id"], given["owner"], **_lease_of(given))
    return _with_lease(held) if given.get("show-lease") else _row(held.errand)


def _next(given: Given, _complain: Say) -> Given | None:
    held = _errands().claim_next(
        given["owner"],
        kinds=[kind for kind in given.get("kind", "").split(",") if kind],
        max_attempts=given.get("max-attempts", 0),
        **_lease_of(given),
    )
    return _with_lease(held) if held else None


def _renew(given: Given, _complain: Say) -> Given:
    return _row(_errands().renew(given["id"], given["token"], **_lease_of(given)))


def _release(given: Given, _complain: Say) -> Given:
    token, reason = given.get("token"), given.get("reason", "")
    return _row(_errands().release(given["id"], token=token, reason=reason))


def _resolve(given: Given, _complain: Say) -> Given:
    return _row(
        _errands().resolve(
            given["id"],
            given["status"],
            notes=given.get("notes", ""),
            token=given.get("token"),
            owner=given.get("owner"),
        )
    )


def _park(given: Given, _complain: Say) -> Given:
    return _row(_errands().park(given["id"], given["question"], token=given.get("token")))


def _answer(given: Given, _complain: Say) -> Given:
    return _row(_errands().answer(given["id"], given["answer"]))


def _reopen(given: Given, _complain: Say) -> Given:
    return _row(_errands().reopen(given["id"], given.get("reason", "")))


def _retry(given: Given, _complain: Say) -> Given:
    most, delay = given.get("max-attempts", 3), given.get("delay-s", 0)
    reason = given.get("reason", "")
    return _row(_errands().retry(given["id"], max_attempts=most, delay_ms=delay, reason=reason))


def _annotate(given: Given, _complain: Say) -> Given:
    return _row(_errands().annotate(given["id"], given["notes-json"]))


def _replay(given: Given) -> Iterator[Given]:
    if not _file().exists():
        return
    found = _errands().replay(
        threshold_ms=given.get("threshold-s", 0), kind=given.get("kind"), owner=given.get("owner")
    )
    for one in found:
        yield {"row": _row(one.errand), "why": one.why, "attempt": one.attempt}


def _notes(given: Given) -> Iterator[Given]:
    for at, notes in _errands().earlier_notes(given["id"]):
        yield {"at": at, "notes": notes}


_READING: dict[str, Callable[[Given], Iterator[Given]]] = {
    "list": _list, "pending": _pending, "get": _get, "replay": _replay, "notes": _notes,
}  # fmt: skip
_CHANGING: dict[str, Callable[[Given, Say], Given | None]] = {
    "enqueue": _enqueue, "claim": _claim, "next": _next, "renew": _renew, "release": _release,
    "resolve": _resolve, "park": _park, "answer": _answer, "reopen": _reopen, "retry": _retry,
    "annotate": _annotate,
}  # fmt: skip


def _do_errands(sub: str, given: Given, complain: Say) -> Iterator[Any]:
    if sub in _READING:
        yield from _READING[sub](given)
        return
    told = _CHANGING[sub](given, complain)
    if told is not None:
        yield told


def _do_events(sub: str, given: Given, _complain: Say) -> Iterator[Any]:
    if sub == "tail":
        yield from _look("tail", {"limit": given.get("limit", 50)})
    elif sub == "since":
        from caloron.agentstate.weeks import milliseconds

        yield from _look("since", {"since": milliseconds(given[""])})
    else:
        from caloron.agentstate.diary import Diary
        from caloron.agentstate.file import open_file

        told = Diary(open_file(_file())).append(
            given["type"],
            given["payload"],
            actor=given.get("actor"),
            item=given.get("work-item-id"),
            key=given.get("key", ""),
        )
        if told is not None:
            yield _row(told)


def _do_scaffold(_sub: str, given: Given, _complain: Say) -> Iterator[Any]:
    from caloron.agentstate.scaffold import scaffold

    where = Path(given[""]).expanduser().absolute()
    done = scaffold(where, given["host"], given["agent"], strict=bool(given.get("strict")))
    yield from (str(action) for action in done)


def _do_dashboard(_sub: str, _given: Given, _complain: Say) -> Iterator[Any]:
    from caloron.agentstate.dashboard import regenerate

    yield str(regenerate(instance_dir()))


def _do_retro(_sub: str, given: Given, complain: Say) -> Iterator[Any]:
    from caloron.agentstate.retro import write_weekly

    path, aside = write_weekly(instance_dir(), given.get("week"))
    if aside is not None:
        complain(f"note: {path.name} had been edited; that text is kept as {aside.name}")
    yield str(path)


def _do_hook(sub: str, _given: Given, _complain: Say) -> Iterator[Any]:
    from caloron.agentstate.hooks import run_hook

    yield from run_hook(sub, os.environ, instance_dir())


def _do_skill(_sub: str, given: Given, _complain: Say) -> Iterator[Any]:
    from caloron.agentstate.skill import install

    where = Path(given[""]).expanduser().absolute()
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
