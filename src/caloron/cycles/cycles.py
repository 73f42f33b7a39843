"""The rules of a cycle: wake, act, report, sleep; each step is durable before it counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any

from caloron.cycles.report import Report, report_of
from caloron.cycles.state import RESULTS, CycleState
from caloron.cycles.storage import CycleFiles, LoadedState, Location, Log, location_of
from caloron.errors import CaloronError, InUse, PreconditionFailed, UsageError, store_errors
from caloron.store.files import read_text, write_atomic
from caloron.store.lock import ProcessIdentity, this_process

#: A cycle without a heartbeat for this long is dead.
DEAD_AFTER = timedelta(minutes=20)
#: The longest text of one step; whole transcripts belong elsewhere.
_MAX_TEXT = 2000


class StopRequested(CaloronError):
    """A stop was requested: no cycle begins before the request is withdrawn."""

    code = "STOPPED"
    exit_code = 11


class Cycles:
    """The cycles of one agent."""

    def __init__(
        self,
        location: Location,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        log: Log | None = None,
    ) -> None:
        self.location = location
        self.log = log or Log(location.log)
        self._now = now
        self._files = CycleFiles(location, self.log, now)

    @property
    def notices(self) -> tuple[str, ...]:
        """Steps that are in the log although the state file could not be written."""
        return tuple(self._files.write_errors)

    def load(self) -> LoadedState:
        """Load the current state; an unusable state file is skipped, not touched."""
        return self._files.load()

    def report(self) -> Report:
        """Return the report for an agent that wakes."""
        state = self.load().state
        if state.status == "open" and (reason := self.reason_dead(state)):
            state = state._replace(status="crashed", reason=reason)
        return report_of(state, stop=self.stop_request())

    def reason_dead(self, state: CycleState) -> str:
        """Return why an open cycle counts as crashed; empty if it is at work."""
        holder = _holder(state.holder)
        if holder is not None and holder.is_gone:
            return f"process {holder.pid} is gone"
        silence = self._now() - _parse_time(state.heartbeat)
        if silence > DEAD_AFTER:
            return f"no sign for {int(silence.total_seconds() // 60)} min"
        return ""

    def stop_request(self) -> str:
        """Return why the agent shall stop; empty if no stop is requested."""
        try:
            return read_text(self.location.stop).strip() or "no reason given"
        except FileNotFoundError:
            return ""

    def request_stop(self, reason: str) -> None:
        """Ask the agent to begin no other cycle."""
        write_atomic(self.location.stop, f"{_short(reason.strip())}\n".encode("utf-8", "replace"))

    def clear_stop(self) -> bool:
        """Withdraw the request; False if there was none."""
        requested = bool(self.stop_request())
        with store_errors(f"cannot remove {self.location.stop}", hint="remove it yourself"):
            self.location.stop.unlink(missing_ok=True)
        return requested

    def begin(
        self, *, holder: ProcessIdentity | None = None, work: str | None = None
    ) -> tuple[LoadedState, Report]:
        """Wake with a new number and the report of the last cycle; refused while one is at work."""
        with self._files.exclusive() as loaded:
            state = loaded.state
            if reason := self.stop_request():
                self._files.record(state, "stopped", reason=reason)
                raise StopRequested(
                    f"{self.location.agent} was asked to stop: {reason}",
                    hint=f"to let it go on: caloron cycle stop {self.location.agent} --clear",
                )
            if state.status == "open":
                state = self._close_crashed(state, self.reason_dead(state))
            self._files.remove_temporary()
            self.log.rotate()
            fields = _fields(holder=(holder or this_process())._asdict(), work=work)
            state = self._files.record(state, "begin", self._files.next_number(), **fields)
            return LoadedState(state, (*loaded.notices, *self.notices)), report_of(state)

    def act(
        self,
        action: str,
        *,
        result: str = "success",
        artefact: str = "",
        work: str | None = None,
        next_target: str | None = None,
        cycle: int | None = None,
    ) -> CycleState:
        """Record one step, which is also a heartbeat."""
        _require_result(result)
        fields = _fields(action=action, artefact=artefact or None, work=work, next=next_target)
        with self._open_cycle(cycle) as state:
            return self._files.record(state, "act", result=result, **fields)

    def beat(self, *, cycle: int | None = None) -> CycleState:
        """Record a heartbeat only; the log does not grow by it."""
        with self._open_cycle(cycle) as state:
            return self._files.beat(state)

    def end(
        self,
        result: str = "success",
        *,
        artefacts: tuple[str, ...] = (),
        reason: str = "",
        work: str | None = None,
        next_target: str | None = None,
        cycle: int | None = None,
    ) -> CycleState:
        """End the cycle; it leaves an artefact, or a reason why not."""
        _require_result(result)
        named = [_short(artefact) for artefact in artefacts if artefact.strip()]
        fields = _fields(
            artefacts=named or None, reason=reason.strip() or None, work=work, next=next_target
        )
        with self._open_cycle(cycle) as state:
            if not (state.artefacts or named or "reason" in fields):
                raise UsageError(
                    f"cycle {state.cycle_number} of {state.agent} leaves nothing",
                    hint="name what it made (an artefact), or say why there is nothing (a reason)",
                )
            return self._files.record(state, "end", result=result, **fields)

    def recover(self, *, force: bool = False) -> LoadedState:
        """Set an unusable file aside and close a dead cycle; `force` closes one that lives, too."""
        if not self._files.exist:
            return self.load()
        with self._files.exclusive() as loaded:
            state, notices = loaded.state, loaded.notices
            if state.status == "open":
                reason = self.reason_dead(state) or ("declared dead by hand" if force else "")
                state = self._close_crashed(state, reason)
                notices = (*notices, f"cycle {state.cycle_number} crashed: {state.reason}")
            return LoadedState(state, (*notices, *self.notices))

    def _close_crashed(self, state: CycleState, reason: str) -> CycleState:
        """Close a dead cycle as crashed; without a reason the cycle lives and is refused."""
        if reason:
            last_step = state.last_action if state.steps else ""
            return self._files.record(state, "crashed", reason=reason, last_step=last_step)
        owner = state.holder or {}
        raise InUse(
            f"cycle {state.cycle_number} of {state.agent} is held by process"
            f" {owner.get('pid', '?')} on {owner.get('host', 'this machine')},"
            f" last sign {state.heartbeat}",
            hint=f"wait for it; if it is dead: caloron cycle recover {state.agent} --force",
        )

    @contextmanager
    def _open_cycle(self, cycle: int | None) -> Iterator[CycleState]:
        """Lock the open cycle; an agent that never woke gets not even a lock file."""
        if not self._files.exist:
            self._require_open(self.load().state, cycle)
        with self._files.exclusive() as loaded:
            self._require_open(loaded.state, cycle)
            yield loaded.state

    def _require_open(self, state: CycleState, cycle: int | None) -> None:
        number, hint = state.cycle_number, f"begin a new one: caloron cycle begin {state.agent}"
        if cycle is not None and cycle > number:
            last = f"the last one is {number}" if number else "there was none"
            raise InUse(f"{state.agent} has had no cycle {cycle} yet: {last}", hint=hint)
        if cycle is not None and number != cycle:
            raise InUse(
                f"cycle {cycle} of {state.agent} is over: cycle {number} is {state.status}",
                hint="stop working; another wake took over",
            )
        reason = state.reason if state.status == "crashed" else ""
        if state.status == "open" and state.holder != this_process()._asdict():
            # The process that began the cycle proves by this call that it lives.
            reason = self.reason_dead(state)
        if reason:
            raise PreconditionFailed(
                f"cycle {number} of {state.agent} is dead: {reason}", hint=hint
            )
        if state.status != "open":
            raise PreconditionFailed(f"no cycle of {state.agent} is open", hint=hint)


def _fields(**values: Any) -> dict[str, Any]:
    """The fields that have a value, with texts cut to a reasonable length."""
    return {
        name: _short(value) if isinstance(value, str) else value
        for name, value in values.items()
        if value is not None
    }


def _short(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def _require_result(result: str) -> None:
    if result not in RESULTS:
        raise UsageError(f"a result cannot be {result!r}", hint=f"one of {', '.join(RESULTS)}")


def _parse_time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _holder(fields: dict[str, Any] | None) -> ProcessIdentity | None:
    try:
        return ProcessIdentity(**(fields or {}))
    except TypeError:
        return None


class Cycle:
    """One open cycle of a Python program: `with cycle(agent) as c:`."""

    def __init__(
        self, cycles: Cycles, number: int, report: Report, notices: tuple[str, ...]
    ) -> None:
        self.number = number
        #: The report of the cycle before; `report.text()` opens a prompt.
        self.report = report
        #: Damage that was repaired on wake.
        self.notices = notices
        self._cycles = cycles
        self._ended = False
        self._next: str | None = None
        self._work: str | None = None
        self._reason = ""

    def act(self, action: str, *, result: str = "success", artefact: str = "") -> None:
        """Record a step, and what remains of it."""
        self._cycles.act(action, result=result, artefact=artefact, cycle=self.number)

    def beat(self) -> None:
        self._cycles.beat(cycle=self.number)

    def work(self, task: str) -> None:
        """Name the work in progress across cycles; empty: nothing any more."""
        self._work = task

    def plan(self, target: str) -> None:
        """Name the target of the next cycle."""
        self._next = target

    def because(self, reason: str) -> None:
        """Give the reason for a cycle without an artefact."""
        self._reason = reason

    def end(self, result: str = "success", *, artefacts: tuple[str, ...] = ()) -> None:
        self._cycles.end(
            result,
            artefacts=artefacts,
            reason=self._reason,
            work=self._work,
            next_target=self._next,
            cycle=self.number,
        )
        self._ended = True

    def __enter__(self) -> Cycle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ended:
            return
        if error is not None:
            message = f": {error}" if str(error) else ""
            self._reason = f"{type(error).__name__}{message}"
            self.end("failure")
        else:
            try:
                self.end("success")
            except UsageError:
                self._reason = "ended without an artefact and without a reason"
                self.end("partial")


def cycle(agent: str, *, work: str | None = None, location: Location | None = None) -> Cycle:
    """Wake as this agent; the cycle ends with the `with` block, also when the block raises."""
    cycles = Cycles(location or location_of(agent))
    loaded, report = cycles.begin(work=work)
    return Cycle(cycles, loaded.state.cycle_number, report, loaded.notices)
