"""Wake, act, report, sleep: the rules of a cycle, each step durable before it counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from caloron.agentstate.cycles.files import CycleFiles, Looked
from caloron.agentstate.cycles.log import Log
from caloron.agentstate.cycles.places import Places
from caloron.agentstate.cycles.report import Report, report_of
from caloron.agentstate.cycles.state import RESULTS, CycleState
from caloron.errors import CaloronError, HeldByAnother, PreconditionFailed, StoreError, UsageError
from caloron.store.files import write_atomic
from caloron.store.lock import Holder, this_holder

#: A cycle that gave no sign for so long is dead.
DEAD_AFTER = timedelta(minutes=20)
#: What is said of one step; whole transcripts belong elsewhere.
_LONGEST = 2000


class StopRequested(CaloronError):
    """Somebody asked the agent to stop: no cycle begins before that is taken back."""

    code = "STOPPED"
    exit_code = 11


class Cycles:
    """The cycles of one agent."""

    def __init__(
        self,
        places: Places,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        log: Log | None = None,
        dead_after: timedelta | None = DEAD_AFTER,
    ) -> None:
        """With `dead_after=None` a cycle is only dead if somebody says so, as a ledger does.

        Such a diary numbers its lines: each step can be told which of them it `follows`.
        """
        self.places = places
        self.log = log or Log(places.log)
        self._now = now
        self._dead_after = dead_after
        self._files = CycleFiles(places, self.log, now)

    @property
    def notices(self) -> tuple[str, ...]:
        """What of the steps so far is in the log but could not be written elsewhere."""
        return tuple(self._files.behind)

    def batch(self, follows: int) -> AbstractContextManager[None]:
        """Write the steps of a block together: all of them, or none if it ends in an error.

        They follow another diary up to its line `follows`.
        """
        return self._files.batch(follows)

    def look(self) -> Looked:
        """The state of this moment; a file that cannot be believed is passed over, not touched."""
        return self._files.look()

    def report(self) -> Report:
        """What the agent has to know when it wakes."""
        state = self.look().state
        if state.status == "open" and (why := self.dead(state)):
            state = state._replace(status="crashed", reason=why)
        return report_of(state, stop=self.stop_request())

    def dead(self, state: CycleState) -> str:
        """Why an open cycle counts as crashed; empty: it is at work."""
        if self._dead_after is None:
            return ""
        holder = _holder(state.holder)
        if holder is not None and holder.is_gone:
            return f"process {holder.pid} is gone"
        silence = self._now() - _moment(state.heartbeat)
        if silence > self._dead_after:
            return f"no sign for {int(silence.total_seconds() // 60)} min"
        return ""

    def stop_request(self) -> str:
        """Why the agent shall stop, whichever place says so; empty: it shall not."""
        return next(filter(None, map(_stop_in, self._stops())), "")

    def _stops(self) -> list[Path]:
        return [place.stop for place in (self.places, self.places.other) if place]

    def begin(
        self, *, holder: Holder | None = None, work: str | None = None
    ) -> tuple[Looked, Report]:
        """Wake: a new number, and what the last cycle left; refused while another is at work."""
        with self._files.turn() as looked:
            state, notices = looked.state, looked.notices
            if reason := self.stop_request():
                self._files.record(state, "stopped", reason=reason)
                raise StopRequested(
                    f"{self.places.agent} was asked to stop: {reason}",
                    hint=f"to let it go on: caloron cycle stop {self.places.agent} --clear",
                )
            if state.status == "open":
                state = self._crashed(state, self.dead(state))
            self._files.sweep()
            self.log.rotate()
            number = max(state.cycle_number, self._files.highest()) + 1
            told = _given(holder=(holder or this_holder())._asdict(), work=work)
            state = self._files.record(state, "begin", number, **told)
            return Looked(state, (*notices, *self.notices)), report_of(state)

    def act(
        self,
        action: str,
        *,
        result: str = "success",
        artefact: str = "",
        work: str | None = None,
        next_target: str | None = None,
        cycle: int | None = None,
        follows: int | None = None,
    ) -> CycleState:
        """One step was done; that is also a sign of life."""
        _require_result(result)
        told = _given(
            action=action, artefact=artefact or None, work=work, next=next_target, follows=follows
        )
        with self._turn(cycle) as state:
            return self._files.record(state, "act", result=result, **told)

    def beat(self, *, cycle: int | None = None) -> CycleState:
        """A sign of life and nothing else; the log does not grow by it."""
        with self._turn(cycle) as state:
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
        follows: int | None = None,
    ) -> CycleState:
        """Report and sleep; a cycle leaves something, or says why not."""
        _require_result(result)
        left = [_short(one) for one in artefacts if one.strip()]
        told = _given(reason=reason.strip() or None, work=work, next=next_target, follows=follows)
        with self._turn(cycle) as state:
            if not (state.artefacts or left or "reason" in told):
                raise UsageError(
                    f"cycle {state.known_cycle} of {state.agent} leaves nothing",
                    hint="name what it made (an artefact), or say why there is nothing (a reason)",
                )
            if left:
                told["artefacts"] = left
            return self._files.record(state, "end", result=result, **told)

    def recover(self, *, force: bool = False, why: str = "", follows: int | None = None) -> Looked:
        """Mend what a crash left: the file, and a cycle that nobody ended.

        Whoever knows why it is dead says so; `force` calls it dead without a reason.
        """
        if not self._files.are_there:
            return self.look()
        with self._files.turn() as looked:
            state, notices = looked.state, looked.notices
            if state.status == "open":
                why = why or self.dead(state) or ("declared dead by hand" if force else "")
                state = self._crashed(state, why, follows)
                notices = (*notices, f"cycle {state.known_cycle} crashed: {state.reason}")
            return Looked(state, (*notices, *self.notices))

    def raise_to(self, number: int, reason: str, *, follows: int | None = None) -> CycleState:
        """Let no later cycle have this number or a lower one: they were given elsewhere."""
        with self._files.turn() as looked:
            if number <= looked.state.cycle_number:
                return looked.state
            told = _given(reason=reason, follows=follows)
            return self._files.record(looked.state, "raised", number, **told)

    def request_stop(self, reason: str) -> None:
        """Ask the agent to begin no other cycle."""
        write_atomic(self.places.stop, f"{_short(reason.strip())}\n".encode("utf-8", "replace"))

    def clear_stop(self) -> bool:
        """Take that back; False if nobody had asked."""
        found = [stop for stop in self._stops() if _stop_in(stop)]
        for stop in found:
            try:
                stop.unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(
                    f"cannot remove {stop}: {error.strerror}", hint="remove it yourself"
                ) from error
        return bool(found)

    def _crashed(self, state: CycleState, why: str, follows: int | None = None) -> CycleState:
        """A cycle that is open and dead is closed as crashed; one that lives is left alone."""
        if why:
            step = state.last_action if state.steps else ""
            told = _given(reason=why, last_step=step, follows=follows)
            return self._files.record(state, "crashed", **told)
        who = state.holder or {}
        raise HeldByAnother(
            f"cycle {state.known_cycle} of {state.agent} is held by process {who.get('pid', '?')}"
            f" on {who.get('host', 'this machine')}, last sign {state.heartbeat}",
            hint=f"wait for it; if it is dead: caloron cycle recover {state.agent} --force",
        )

    @contextmanager
    def _turn(self, cycle: int | None) -> Iterator[CycleState]:
        """Alone with the open cycle; whoever never woke leaves not even a lock."""
        if not self._files.are_there:
            self._require_open(self.look().state, cycle)
        with self._files.turn() as looked:
            self._require_open(looked.state, cycle)
            yield looked.state

    def _require_open(self, state: CycleState, cycle: int | None) -> None:
        number, hint = state.known_cycle, f"begin a new one: caloron cycle begin {state.agent}"
        if cycle is not None and cycle > number:
            last = f"the last one is {number}" if number else "there was none"
            raise HeldByAnother(f"{state.agent} has had no cycle {cycle} yet: {last}", hint=hint)
        if cycle is not None and number != cycle:
            raise HeldByAnother(
                f"cycle {cycle} of {state.agent} is over: cycle {number} is {state.status}",
                hint="stop working; another wake took over",
            )
        why = state.reason if state.status == "crashed" else ""
        if state.status == "open" and state.holder != this_holder()._asdict():
            # Whoever began it and says so now lives, however long it was silent.
            why = self.dead(state)
        if why:
            raise PreconditionFailed(f"cycle {number} of {state.agent} is dead: {why}", hint=hint)
        if state.status != "open":
            raise PreconditionFailed(f"no cycle of {state.agent} is open", hint=hint)


def _given(**told: Any) -> dict[str, Any]:
    """What was said, each in reasonable length."""
    said = {name: value for name, value in told.items() if value is not None}
    return {name: _short(v) if isinstance(v, str) else v for name, v in said.items()}


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _require_result(result: str) -> None:
    if result not in RESULTS:
        raise UsageError(f"a result cannot be {result!r}", hint=f"one of {', '.join(RESULTS)}")


def _stop_in(file: Path) -> str:
    """What a request to stop says; empty: there is none."""
    try:
        said = file.read_text("utf-8", "replace").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise StoreError(
            f"cannot read {file}: {error.strerror}", hint="make it readable for you"
        ) from error
    return said or "no reason given"


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _holder(told: dict[str, Any] | None) -> Holder | None:
    try:
        return Holder(**(told or {}))
    except TypeError:
        return None
