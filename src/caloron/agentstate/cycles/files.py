"""The files of an agent's cycles: read, mended, and written so that a crash leaves old or new.

The log is written first and the state file after it; a crash in between is mended by the next look,
which brings the state up to the log. A state file that cannot be believed is put aside and made
anew from the log.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
    read,
    render,
)
from caloron.errors import StoreError
from caloron.store.files import write_atomic
from caloron.store.lock import turn


class Looked(NamedTuple):
    """The state as it was found, and what had to be mended for that."""

    state: CycleState
    notices: tuple[str, ...] = ()
    #: What a file that cannot be believed is to be called when it is put aside.
    aside: Path | None = None


class CycleFiles:
    """State file, log and lock of one agent."""

    def __init__(self, places: Places, log: Log, now: Callable[[], datetime]) -> None:
        self.places = places
        self.log = log
        self._now = now
        self._lock = -1

    def look(self) -> Looked:
        """The state of this moment; nothing is written."""
        notices: list[str] = []
        found, aside = self._file(notices)
        return Looked(self._caught_up(found, notices), tuple(notices), aside)

    @contextmanager
    def turn(self) -> Iterator[Looked]:
        """Alone with the files, which are brought in order first."""
        with turn(self.places.lock) as self._lock:
            looked = self.look()
            if looked.aside is not None:
                aside = _set_aside(self.places.state, looked.aside)
                note = f"it was put aside as {aside.name} and made anew from the log"
                state = self.record(looked.state, "set_aside", file=aside.name)
                looked = Looked(state, (*looked.notices, note))
            yield looked

    def record(
        self, state: CycleState, event: str, cycle: int | None = None, **told: Any
    ) -> CycleState:
        """One line of the log, and then the state that it leads to; within a turn."""
        seq = max(state.seq, self._mark().get("seq", 0))
        if state.cycle_number and not self.log.path.exists():
            # A new log begins with what the older ones came to.
            seq += 1
            state = state._replace(seq=seq)
            kept = {"version": VERSION} | state._asdict()
            self._append(state.cycle_number, "snapshot", {"state": kept}, seq)
        number = state.cycle_number if cycle is None else cycle
        after = apply(state, self._append(number, event, told, seq + 1))
        self.write(after)
        return after

    def _append(self, cycle: int, event: str, told: dict[str, Any], seq: int) -> Entry:
        entry: Entry = {"at": self.at(), "cycle": cycle, "event": event} | told | {"seq": seq}
        self.log.append(entry)
        return entry

    def write(self, state: CycleState) -> None:
        """The state as it is now; within a turn."""
        write_atomic(self.places.state, render(state))
        mark = {"cycle": state.cycle_number, "seq": state.seq}
        try:
            os.pwrite(self._lock, json.dumps(mark).encode().ljust(64), 0)
        except OSError as error:
            raise StoreError(
                f"cannot write {self.places.lock}: {error.strerror}", hint="free some space"
            ) from error

    def sweep(self) -> None:
        """Remove what a killed writer left half written beside the state; within a turn."""
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
        try:
            found = json.loads(os.pread(self._lock, 4096, 0) or b"{}")
        except ValueError:
            return {}
        if not isinstance(found, dict):
            return {}
        return {key: value for key, value in found.items() if type(value) is int}

    def _file(self, notices: list[str]) -> tuple[CycleState, Path | None]:
        """What the state file says, and its new name if it cannot be believed."""
        fresh, path = CycleState(self.places.agent), self.places.state
        try:
            return read(path.read_bytes(), self.places.agent), None
        except FileNotFoundError:
            return fresh, None
        except OSError as error:
            raise StoreError(
                f"cannot read {path}: {error.strerror}", hint="make it readable for you"
            ) from error
        except Unreadable as error:
            kind = "future" if isinstance(error, FromTheFuture) else "damaged"
            notices.append(f"{path} cannot be used: {error}")
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
        return folded._replace(cycle_number=max(folded.cycle_number, state.cycle_number))


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
