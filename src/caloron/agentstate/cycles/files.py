"""The files of an agent's cycles: read, mended, and written so that a crash leaves old or new.

The log is written first and the state file after it; a crash in between is mended by the next look,
which brings the state up to the log. A state file that cannot be believed is put aside and made
anew from the log. An agent that went on in another place meanwhile goes on from there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from caloron.agentstate.cycles.log import Entry, Log
from caloron.agentstate.cycles.places import Places
from caloron.agentstate.cycles.state import (
    VERSION,
    CycleState,
    FromTheFuture,
    Unreadable,
    apply,
    raised,
    read,
    render,
)
from caloron.errors import StoreError
from caloron.store.files import read_plain, write_atomic
from caloron.store.lock import turn


class Looked(NamedTuple):
    """The state as it was found, and what had to be mended for that."""

    state: CycleState
    notices: tuple[str, ...] = ()
    #: What a file that cannot be believed is to be called when it is put aside.
    aside: Path | None = None
    #: The state file of another place, of which this is the state.
    elsewhere: Path | None = None


class CycleFiles:
    """State file, log and lock of one agent."""

    def __init__(self, places: Places, log: Log, now: Callable[[], datetime]) -> None:
        self.places = places
        self.log = log
        self._now = now
        self._lock = -1
        #: The locks of the other place, while it is ours too.
        self._others: tuple[int, ...] = ()
        #: Where the state of this turn comes from, until a line of the log says so.
        self._elsewhere: Path | None = None
        #: State files that could not be written although the log was.
        self.behind: list[str] = []
        #: The state within a batch, which is written at its end.
        self._batched: CycleState | None = None

    @property
    def are_there(self) -> bool:
        """Whether anything is known of this agent, in either place."""
        if self._batched is not None and self._batched.cycle_number:
            return True
        places = (self.places, self.places.other)
        files = [file for place in places if place for file in (place.state, place.log)]
        return any(file.exists() for file in files) or self.log.last() is not None

    @contextmanager
    def batch(self, follows: int) -> Iterator[None]:
        """Record many steps with one lock, one write of the log and one of the state file.

        An error in the block drops all of them. Afterwards the state follows the other diary up to
        line `follows`, also if its last lines were no steps.
        """
        with self.turn() as looked:
            self.sweep()
            self._batched = looked.state
            try:
                with self.log.batch():
                    yield
                after = self._batched
                if after.cycle_number:
                    after = after._replace(follows=max(after.follows, follows))
            finally:
                self._batched = None
            if after != looked.state:
                self._write_or_note(after)

    def look(self) -> Looked:
        """The state of this moment; nothing is written."""
        if self._batched is not None:
            return Looked(self._batched)
        looked, other = self._look_here(), self.places.other
        if other is None:
            return looked
        theirs = CycleFiles(other, Log(other.log), self._now)._look_here().state
        mine = looked.state
        if (theirs.cycle_number, theirs.moves) <= (mine.cycle_number, mine.moves):
            return looked
        note = (
            f"{theirs.agent} went on in {other.state}, up to cycle {theirs.cycle_number};"
            f" from there it goes on in {self.places.state}"
        )
        state = theirs._replace(seq=mine.seq, moves=theirs.moves + 1)
        return Looked(state, (*looked.notices, note), looked.aside, other.state)

    def _look_here(self) -> Looked:
        notices: list[str] = []
        found, aside = self._file(notices)
        return Looked(self._caught_up(found, notices), tuple(notices), aside)

    @contextmanager
    def turn(self) -> Iterator[Looked]:
        """Alone with the files, which are brought in order first."""
        if self._batched is not None:
            yield Looked(self._batched)
            return
        with ExitStack() as stack:
            locks = {path: stack.enter_context(turn(path)) for path in self._locks()}
            self._lock = locks.pop(self.places.lock)
            self._others = tuple(locks.values())
            looked = self.look()
            self._elsewhere = looked.elsewhere
            if looked.aside is not None:
                aside = _set_aside(self.places.state, looked.aside)
                note = f"it was put aside as {aside.name} and made anew from the log"
                known = raised(looked.state, self.highest())
                state = self.record(known, "set_aside", known.cycle_number, file=aside.name)
                looked = looked._replace(state=state, notices=(*looked.notices, note), aside=None)
            yield looked

    def _locks(self) -> list[Path]:
        """In one order for everybody: two places of one agent are used by one at a time."""
        other = self.places.other
        if other is None or not os.access(other.state.parent, os.W_OK | os.X_OK):
            return [self.places.lock]
        return sorted((self.places.lock, other.lock))

    def record(
        self, state: CycleState, event: str, cycle: int | None = None, **told: Any
    ) -> CycleState:
        """One line of the log, and then the state that it leads to; within a turn."""
        state = self._going_on(state)
        number = state.known_cycle if cycle is None else cycle
        after = apply(state, self._append(number, event, told, state.seq + 1))
        if self._batched is None:
            self._write_or_note(after)
        else:
            self._batched = after
        return after

    def _write_or_note(self, state: CycleState) -> None:
        try:
            self._write(state)
        except StoreError as error:
            # What is in the log has happened: the next look makes the file anew from it.
            self.behind.append(f"{error}; it is in {self.log.path} and counts")

    def beat(self, state: CycleState) -> CycleState:
        """A sign of life, which is not in the log; within a turn."""
        state = self._going_on(state)._replace(heartbeat=self.at())
        self._write(state)
        return state

    def _going_on(self, state: CycleState) -> CycleState:
        """A new log begins with what the older ones came to, or those of another place."""
        state = state._replace(seq=max(state.seq, self._mark().get("seq", 0)))
        told, event = {}, "snapshot"
        if self._elsewhere is not None:
            told, event = {"from": str(self._elsewhere)}, "carried"
        elif not state.cycle_number or self.log.has_lines:
            return state
        state = state._replace(seq=state.seq + 1)
        kept = {"version": VERSION} | state._asdict()
        self._append(state.cycle_number, event, {"state": kept} | told, state.seq)
        self._elsewhere = None
        return state

    def _append(self, cycle: int, event: str, told: dict[str, Any], seq: int) -> Entry:
        entry: Entry = {"at": self.at(), "cycle": cycle, "event": event} | told | {"seq": seq}
        self.log.append(entry)
        return entry

    def _write(self, state: CycleState) -> None:
        write_atomic(self.places.state, render(state))
        self._remember(self._lock, state.cycle_number, state.seq)
        for lock in self._others:
            # Should this place go away, the other one knows which numbers were given.
            self._remember(lock, state.cycle_number)

    def _remember(self, lock: int, number: int, seq: int = 0) -> None:
        known = _mark_in(lock)
        mark = {"cycle": max(number, known.get("cycle", 0)), "seq": seq or known.get("seq", 0)}
        try:
            os.pwrite(lock, json.dumps(mark).encode().ljust(64), 0)
        except OSError as error:
            raise StoreError(
                f"cannot write {self.places.lock}: {error.strerror}", hint="free some space"
            ) from error

    def sweep(self) -> None:
        """Remove what a killed writer left half written beside the state; within a turn."""
        if self._batched is not None:
            return
        for left in self.places.state.parent.glob(f".{self.places.state.name}.*.tmp"):
            # Whoever may not remove it can do no harm by leaving it.
            with suppress(OSError):
                left.unlink()

    def highest(self) -> int:
        """The highest number that was ever given, as far as anything remembers it."""
        last = self.log.last()
        return max(last["cycle"] if last else 0, self._mark().get("cycle", 0))

    def at(self) -> str:
        return self._now().astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _mark(self) -> dict[str, int]:
        """The lock file remembers numbers too, for when state and log come back from a backup."""
        return _mark_in(self._lock)

    def _file(self, notices: list[str]) -> tuple[CycleState, Path | None]:
        """What the state file says, and its new name if it cannot be believed."""
        fresh, path = CycleState(self.places.agent), self.places.state
        try:
            return read(read_plain(path), self.places.agent), None
        except FileNotFoundError:
            return fresh, None
        except Unreadable as error:
            kind = "future" if isinstance(error, FromTheFuture) else "damaged"
            notices.append(f"{path} cannot be used: {error}")
            if error.number:
                fresh = raised(fresh, error.number)
                notices.append(f"its number, {error.number}, is kept")
            return fresh, path.with_name(f"{path.name}.{kind}")

    def _caught_up(self, state: CycleState, notices: list[str]) -> CycleState:
        """The state with every line of the log that is newer than it."""
        last = self.log.last()
        if last is None or last["seq"] <= state.seq:
            return state
        if not state.cycle_number and not notices and last["cycle"]:
            notices.append(f"{self.places.state} was missing and was made anew from the log")
        # A file that somebody else wrote knows no lines: the log knows better, but for its number.
        folded = state if state.seq else CycleState(self.places.agent)
        for entry in self.log.entries():
            folded = apply(folded, entry)
        return raised(folded, state.cycle_number)


def _mark_in(lock: int) -> dict[str, int]:
    try:
        found = json.loads(os.pread(lock, 4096, 0) or b"{}")
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if type(value) is int}


def _set_aside(path: Path, wanted: Path) -> Path:
    aside, number = wanted, 1
    while aside.exists():
        number += 1
        aside = wanted.with_name(f"{wanted.name}-{number}")
    try:
        path.replace(aside)
    except OSError as error:
        raise StoreError(
            f"cannot put {path} aside: {error.strerror}", hint="move it away yourself"
        ) from error
    return aside
