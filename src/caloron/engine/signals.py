"""Signals from threads to the loop, and from the loop to listeners."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from caloron.domain.model.effects import Moved
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.sprint import State
from caloron.domain.reporting.waiting import Outage, clock_time
from caloron.store import log
from caloron.store.wake import Wake

_BASELINES = {
    "green": "main is green: {line}",
    "red": "main is RED ({line}) and you allowed that: red results can be merged until it is green",
    "unverified": "NOTHING IS VERIFIED: no tests were found, so results are merged on their review"
    " alone; say how with: caloron config set verify LINE",
    "off": "verification is switched off (verify = none): results are merged on their review alone",
    "none": "main holds nothing to verify yet",
}


class SystemClock:
    def now(self) -> float:
        return time.time()


class LoopSignal:
    """Wakes the loop from other threads; an error of a thread stops the loop."""

    def __init__(self, wake: Wake) -> None:
        self._wake = wake
        self.errors: list[BaseException] = []

    def notify(self) -> None:
        self._wake.poke()

    def fail(self, error: BaseException) -> None:
        log.error("a thread of the engine failed", error=error)
        self.errors.append(error)
        self._wake.poke()


class Approval(msgspec.Struct, frozen=True):
    """The answer of a person to a plan that waits.

    `later` keeps the plan as it is, and ends the run. `on_forge` waits for a decision there.
    """

    answer: Literal["yes", "later", "on_forge", "edited", "again"]
    #: With `edited`: the tasks that replace those of the plan.
    plan: tuple[PlannedTask, ...] = ()
    #: With `again`: what the planner is to do differently.
    remark: str = ""


APPROVED = Approval("yes")
LATER = Approval("later")
ON_FORGE = Approval("on_forge")


class Listener(Protocol):
    """Follows the progress of a sprint: the live view, plain lines, or a test."""

    def transitions(self, state: State, moves: tuple[Moved, ...]) -> None: ...
    def state(self, state: State) -> None: ...
    def message(self, line: str) -> None: ...

    def approve_plan(self, state: State, poll: Callable[[], bool]) -> Approval:
        """Ask about the plan that waits.

        Call `poll` now and then while a person thinks. It returns True once the plan was decided
        or changed on the forge.
        """
        ...


class LineListener:
    """Prints one line per transition; a plan that waits stays as it is."""

    def __init__(self, message: Callable[[str], None], *, name_sprint: bool = True) -> None:
        self.message = message
        self._name_sprint = name_sprint

    def transitions(self, state: State, moves: tuple[Moved, ...]) -> None:
        sprint = f"{state.sprint.id}: " if self._name_sprint else ""
        for move in moves:
            moved = f"{move.old} → {move.new}" if move.old != move.new else move.reason
            self.message(f"{sprint}{move.task}: {moved}")

    def state(self, state: State) -> None:
        """Transitions are enough."""

    def approve_plan(self, state: State, poll: Callable[[], bool]) -> Approval:
        return LATER


class Announcer:
    """Turns changes of the sprint as a whole into messages, each once."""

    def __init__(
        self, message: Callable[[str], None], state: State, *, verification_off: bool
    ) -> None:
        self._message = message
        self._verification_off = verification_off
        self._baseline = state.sprint.main_health.baseline
        self._paused: dict[str, float] = {}
        self._in_retro = False
        self._outage = ""

    def announce(self, state: State, outage: Outage | None) -> None:
        """Report what differs from the last call."""
        self._announce_baseline(state)
        self._announce_retro(state)
        self._announce_pauses(state)
        self._announce_outage(str(outage or ""))

    def _announce_baseline(self, state: State) -> None:
        baseline = state.sprint.main_health.baseline
        is_news = baseline != self._baseline and baseline in _BASELINES
        if is_news and state.sprint.phase != "ended":
            kind = "off" if baseline == "unverified" and self._verification_off else baseline
            self._message(_BASELINES[kind].format(line=state.sprint.main_health.verify_line))
        self._baseline = baseline

    def _announce_retro(self, state: State) -> None:
        in_retro = state.sprint.phase == "retro"
        if in_retro and not self._in_retro:
            self._message("every result is in; a model looks back (Ctrl-C ends without it)")
        self._in_retro = in_retro

    def _announce_pauses(self, state: State) -> None:
        providers = state.sprint.availability.providers
        paused = {name: pause.until for name, pause in providers.items()}
        for name, until in paused.items():
            if self._paused.get(name) != until and until > time.time():
                what = providers[name].what
                self._message(
                    f"{name}: {what}; nobody asks it until {clock_time(until)}, then all goes on"
                )
        self._paused = paused

    def _announce_outage(self, outage: str) -> None:
        if outage and outage != self._outage:
            self._message(f"{outage}; everything waits and goes on by itself")
        elif self._outage and not outage:
            self._message("the forge answers again")
        self._outage = outage
