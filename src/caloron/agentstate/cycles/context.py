"""`with cycle(agent) as c:`, one wake of an agent in a Python program."""

from __future__ import annotations

from types import TracebackType

from caloron.agentstate.cycles.places import Places, places_of
from caloron.agentstate.cycles.report import Report
from caloron.agentstate.cycles.wake import Cycles
from caloron.errors import UsageError


class Cycle:
    """One open cycle, as `with cycle(agent) as c:` gives it."""

    def __init__(
        self, cycles: Cycles, number: int, report: Report, notices: tuple[str, ...]
    ) -> None:
        self.number = number
        #: What the cycle before left; `report.text()` opens a prompt.
        self.report = report
        #: What had to be mended on wake.
        self.notices = notices
        self._cycles = cycles
        self._ended = False
        self._next: str | None = None
        self._work: str | None = None
        self._reason = ""

    @property
    def stop_requested(self) -> str:
        return self._cycles.stop_request()

    def act(self, action: str, *, result: str = "success", artefact: str = "") -> None:
        """Say what was done, and what of it stays."""
        self._cycles.act(action, result=result, artefact=artefact, cycle=self.number)

    def beat(self) -> None:
        self._cycles.beat(cycle=self.number)

    def work(self, task: str) -> None:
        """What is in progress across cycles; empty: nothing any more."""
        self._work = task

    def plan(self, target: str) -> None:
        """What the next cycle shall do."""
        self._next = target

    def because(self, reason: str) -> None:
        """Why this cycle leaves nothing, if it does."""
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
            said = f": {error}" if str(error) else ""
            self._reason = f"{type(error).__name__}{said}"
            self.end("failure")
        else:
            try:
                self.end("success")
            except UsageError:
                self._reason = "ended without an artefact and without a reason"
                self.end("partial")


def cycle(agent: str, *, work: str | None = None, places: Places | None = None) -> Cycle:
    """Wake as this agent; the cycle ends with the `with` block, whatever happens in it."""
    cycles = Cycles(places or places_of(agent))
    looked, report = cycles.begin(work=work)
    return Cycle(cycles, looked.state.cycle_number, report, looked.notices)
