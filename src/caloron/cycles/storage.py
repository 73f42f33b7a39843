"""The files of an agent's cycles: state, log, lock and stop request.

The log is written first and the state file after it. Loading brings the state up to the log, so a
crash between the two loses nothing. A state file that cannot be used is set aside and written again
from the log.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from caloron.cycles.state import (
    VERSION,
    CycleState,
    Entry,
    NewerVersion,
    Unreadable,
    apply,
    read,
    render,
    state_data,
)
from caloron.errors import StoreError, UsageError, store_errors
from caloron.store.crash import crashpoint
from caloron.store.files import append_line, home, read_plain, remove_leftovers, write_atomic
from caloron.store.lock import file_lock

#: A longer log is rotated when the next cycle begins.
ROTATE_BYTES = 1 << 20
KEPT = 9
_CHUNK = 64 * 1024
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
#: The order in each line of the log, for people who read it.
_FIRST = ("at", "cycle", "event")
_NOT_SHOWN = (*_FIRST, "seq", "holder", "state", "follows")


class Location(NamedTuple):
    """The two files of one agent; the lock and the stop request are beside the state file."""

    agent: str
    state: Path
    log: Path

    @property
    def lock(self) -> Path:
        return self.state.with_name(f".{self.agent}.lock")

    @property
    def stop(self) -> Path:
        return self.state.with_name(f"{self.agent}.stop")


def location_of(agent: str, *, hermes: bool | None = None) -> Location:
    """`~/.hermes` on request or if the folder exists, else `$CALORON_HOME/cycles`."""
    if not _NAME.fullmatch(agent):
        raise UsageError(
            f"agent {agent[:60]!r} cannot be used",
            hint="take 1 to 64 letters, digits, '_' and '-', the first of them no '-'",
        )
    folder = Path("~/.hermes").expanduser().absolute()
    if folder.is_dir() if hermes is None else hermes:
        return Location(
            agent, folder / "burn-state" / f"{agent}.json", folder / "burn-logs" / f"{agent}.log"
        )
    cycles = home() / "cycles"
    return Location(agent, cycles / f"{agent}.json", cycles / f"{agent}.log")


class LoadedState(NamedTuple):
    """The state as loaded, and the notices about damage found on the way."""

    state: CycleState
    notices: tuple[str, ...] = ()
    #: The suffix under which an unusable state file is set aside.
    set_aside_as: str = ""
    #: The highest number in state file and log, also where the state itself is lost.
    highest: int = 0


class CycleFiles:
    """State file, log and lock of one agent."""

    def __init__(self, location: Location, log: Log, now: Callable[[], datetime]) -> None:
        self.location = location
        self.log = log
        self._now = now
        self._lock = -1
        self._highest = 0
        #: State files that could not be written although the log was.
        self.write_errors: list[str] = []

    @property
    def exist(self) -> bool:
        """True if anything is known of this agent."""
        files = (self.location.state, self.location.log)
        return any(file.exists() for file in files) or self.log.last() is not None

    def load(self) -> LoadedState:
        """Load the current state; nothing is written."""
        notices: list[str] = []
        agent, path = self.location.agent, self.location.state
        state, set_aside_as = CycleState(agent), ""
        try:
            state = read(read_plain(path), agent)
        except FileNotFoundError:
            # An agent that never woke, or a file that the log restores.
            pass
        except Unreadable as error:
            set_aside_as = "future" if isinstance(error, NewerVersion) else "damaged"
            notices.append(f"{path} cannot be used: {error}")
            if error.number:
                state = state._replace(cycle_number=error.number)
                notices.append(f"its number, {error.number}, is kept")
        last = self.log.last()
        highest = max(state.cycle_number, last["cycle"] if last else 0)
        if last is not None and last["seq"] > state.seq:
            if not state.cycle_number and not notices and last["cycle"]:
                notices.append(f"{path} was missing and was made anew from the log")
            # A file without `seq` was not written by us: the log is more complete.
            state = state if state.seq else CycleState(agent)
            for entry in self.log.entries():
                state = apply(state, entry)
        return LoadedState(state, tuple(notices), set_aside_as, highest)

    @contextmanager
    def exclusive(self) -> Iterator[LoadedState]:
        """Lock the files for the block; an unusable state file is set aside first."""
        with file_lock(self.location.lock) as self._lock:
            loaded = self.load()
            self._highest = max(loaded.highest, _number_in(self._lock))
            if loaded.set_aside_as:
                self._store_highest()
                aside = _set_aside(self.location.state, loaded.set_aside_as)
                note = f"it was put aside as {aside.name} and made anew from the log"
                state = self.record(loaded.state, "set_aside", file=aside.name)
                loaded = loaded._replace(state=state, notices=(*loaded.notices, note))
            yield loaded

    def next_number(self) -> int:
        """A number that no cycle had, as far as state, log and lock file remember."""
        return self._highest + 1

    def record(
        self, state: CycleState, event: str, cycle: int | None = None, **fields: Any
    ) -> CycleState:
        """Append one log entry, then write the state that follows; needs the lock."""
        if state.cycle_number and not self.log.path.exists():
            # A new log begins with the outcome of the older ones.
            content = {"version": VERSION} | state_data(state)
            self._append(state.seq + 1, "snapshot", state.cycle_number, {"state": content})
            state = state._replace(seq=state.seq + 1)
        number = state.cycle_number if cycle is None else cycle
        after = apply(state, self._append(state.seq + 1, event, number, fields))
        try:
            self._write(after)
        except StoreError as error:
            # An entry of the log counts: the next load brings the state up to it.
            self.write_errors.append(f"{error}; it is in {self.log.path} and counts")
        return after

    def _append(self, seq: int, event: str, cycle: int, fields: dict[str, Any]) -> Entry:
        entry = {"at": self.timestamp(), "cycle": cycle, "event": event} | fields | {"seq": seq}
        self.log.append(entry)
        return entry

    def beat(self, state: CycleState) -> CycleState:
        """Write a heartbeat, which is not in the log; needs the lock."""
        state = state._replace(heartbeat=self.timestamp())
        self._write(state)
        return state

    def _write(self, state: CycleState) -> None:
        write_atomic(self.location.state, render(state))
        self._highest = max(self._highest, state.cycle_number)
        self._store_highest()

    def _store_highest(self) -> None:
        """Store the number in the lock file too: state and log may come back from a backup."""
        with store_errors(f"cannot write {self.location.lock}", hint="free some space"):
            os.pwrite(self._lock, json.dumps({"cycle": self._highest}).encode().ljust(64), 0)

    def remove_temporary(self) -> None:
        """Remove the temporary files of killed writers; needs the lock."""
        state = self.location.state
        # A leftover that may not be removed does no harm.
        with suppress(OSError):
            remove_leftovers(state.parent, f".{state.name}.*.tmp")

    def timestamp(self) -> str:
        return timestamp(self._now())


def timestamp(moment: datetime) -> str:
    """ISO 8601 in UTC with milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _number_in(lock: int) -> int:
    try:
        content = json.loads(os.pread(lock, 4096, 0) or b"{}")
    except ValueError:
        return 0
    number = content.get("cycle") if isinstance(content, dict) else 0
    return number if type(number) is int else 0


def _set_aside(path: Path, suffix: str) -> Path:
    wanted = aside = path.with_name(f"{path.name}.{suffix}")
    number = 1
    while aside.exists():
        number += 1
        aside = wanted.with_name(f"{wanted.name}-{number}")
    with store_errors(f"cannot put {path} aside", hint="move it away yourself"):
        path.replace(aside)
    return aside


class Log:
    """The append-only log of one agent: a JSON object per line, and the rotated files beside it."""

    def __init__(self, path: Path, *, rotate_bytes: int = ROTATE_BYTES) -> None:
        self.path = path
        self._rotate_bytes = rotate_bytes

    def append(self, entry: Entry) -> None:
        append_line(self.path, log_line(entry))

    def last(self) -> Entry | None:
        """Return the last whole entry."""
        for file in (self.path, self._rotated(1)):
            # The whole file is read only if its end holds no whole entry.
            for content in (_content(file, _CHUNK), _content(file)):
                entry = next(_entries(content, newest_first=True), None)
                if entry is not None:
                    return entry
        return None

    def entries(self) -> Iterator[Entry]:
        """Every whole entry of the current file, or of the rotated one if there is none."""
        return _entries(_content(self.path if self.path.exists() else self._rotated(1)))

    def newest(self, count: int) -> list[Entry]:
        """The newest entries, the oldest of them first, also from rotated files."""
        entries: list[Entry] = []
        for number in range(KEPT + 1):
            file = self._rotated(number) if number else self.path
            if number and not file.exists():
                break
            entries = [*_entries(_content(file)), *entries]
            if len(entries) >= count:
                break
        return entries[-count:] if count else []

    def rotate(self) -> bool:
        """Rename a long log; the next entry begins a new file."""
        if not self.path.exists() or self.path.stat().st_size < self._rotate_bytes:
            return False
        hint = "make its folder writable for you; nothing is lost"
        with store_errors(f"cannot put {self.path} aside", hint=hint):
            for number in range(KEPT - 1, 0, -1):
                if self._rotated(number).exists():
                    self._rotated(number).replace(self._rotated(number + 1))
            self.path.replace(self._rotated(1))
        crashpoint("log.rotate")
        return True

    def _rotated(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


def log_line(entry: Entry) -> bytes:
    """One line of a log, without its end."""
    ordered = {name: entry[name] for name in _FIRST} | entry
    return json.dumps(ordered, ensure_ascii=False).encode("utf-8", "replace")


def _content(file: Path, last: int | None = None) -> bytes:
    """Return a file, or the whole lines among its last bytes; empty if it is missing."""
    try:
        content = read_plain(file, last)
    except FileNotFoundError:
        return b""
    return content.partition(b"\n")[2] if len(content) == last else content


def _entries(content: bytes, *, newest_first: bool = False) -> Iterator[Entry]:
    """The whole entries; a line that a crash cut off is skipped."""
    lines = content.split(b"\n")
    for line in reversed(lines) if newest_first else lines:
        if not line:
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and _is_entry(entry):
            yield entry


def _is_entry(entry: Entry) -> bool:
    numbers = (entry.get("seq"), entry.get("cycle"))
    words = (entry.get("at"), entry.get("event"))
    return all(type(n) is int and n >= 0 for n in numbers) and all(
        isinstance(word, str) for word in words
    )


def shown(entry: Entry) -> str:
    """One log entry as a line for people."""
    fields = {name: value for name, value in entry.items() if name not in _NOT_SHOWN}
    text = "; ".join(f"{name}: {_one_line(value)}" for name, value in fields.items() if value)
    return f"{entry['at']}  #{entry['cycle']:<4} {entry['event']:9} {text}".rstrip()


def _one_line(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else " ".join(str(value).split())
