"""One visit to a sprint, as cron makes them: look, decide, act on what is due, and leave.

Agents live on in their shims; the next visit collects what they came to. A visit that dies is
simply made again: everything that it needs is in the ledger.
"""

from __future__ import annotations

import time

import msgspec

from caloron.agents import launch
from caloron.domain.facts import Halt, PlanApproved
from caloron.domain.sprint import State
from caloron.domain.supervise import Limits
from caloron.engine.engine import Engine, SystemClock
from caloron.engine.runs import RunDirs
from caloron.engine.tick import Saved, run_tick
from caloron.ledger.ledger import Ledger
from caloron.ledger.projects import Project
from caloron.ledger.work import WorkQueue
from caloron.stages.context import TickContext

#: Effects that are due so soon are waited for.
_SOON_S = 2.0
_SHORTEST_WAIT_S = 0.05
_VISITED = "visited/{}"
_HALT = Halt(reason="it was stopped with `caloron stop`")


def is_visited(ledger: Ledger, sprint: str) -> bool:
    """Whether a sprint is driven by visits, so that it goes on though nothing runs here."""
    return bool(ledger.get(_VISITED.format(sprint)))


def halt(engine: Engine) -> None:
    """End the agents that visits left at work, and let the next visits start none."""
    engine.wake.create()
    try:
        engine.ledger.tell(engine.sprint, [_HALT])
        engine.workers.adopt()
        engine.workers.stop()
        engine.tick(grace=True)
    finally:
        engine.effects.close()
        engine.wake.close()
    engine.raise_fault()


def halt_without_forge(project: Project, ledger: Ledger, sprint: str) -> None:
    """End the agents though no engine can be made; the next engine saves their work."""
    ledger.tell(sprint, [_HALT])
    runs = RunDirs(project.runs)
    queue = WorkQueue(ledger, sprint, holder="stop", lease_ms=0)
    for lease in queue.in_flight():
        launch.stop(runs.of(lease.item, lease.token))
    context = TickContext(ledger=ledger, clock=SystemClock(), limits=Limits(), grace=True)
    run_tick(context, sprint)


class Visited(msgspec.Struct, frozen=True, kw_only=True):
    """What a visit came to."""

    state: State
    #: What was decided, in the words of the stages.
    actions_taken: tuple[str, ...]
    ticks: int
    agents: int
    #: Why the forge was not looked at, if it did not answer.
    outage: str


class Visit:
    """Drives an engine for a moment; whoever makes it holds the project."""

    def __init__(self, engine: Engine, *, limit_s: float) -> None:
        self._engine = engine
        self._until = time.monotonic() + limit_s
        self._taken: list[str] = []
        self._ticks = 0

    def make(self, *, approve: bool = False) -> Visited:
        """Go on until nothing is left to do at once; `approve` says yes to a plan that waits."""
        engine = self._engine
        if not is_visited(engine.ledger, engine.sprint):
            engine.ledger.put(_VISITED.format(engine.sprint), "yes")
        engine.wake.create()
        try:
            engine.books.take_in(busy=bool(engine.queue.in_flight()))
            engine.poller.glance()
            engine.workshop.trash.open()
            engine.workers.adopt()
            state = self._loop(approve=approve)
            agents = len(engine.queue.in_flight())
            if self._ticks > 1:
                engine.workshop.homes.catch_up_sprint()
        finally:
            engine.effects.close()
            engine.workshop.trash.close(_SOON_S)
            engine.wake.close()
        engine.raise_fault()
        if state.sprint.phase == "ended":
            self._write_end(state)
        outage = engine.poller.outage
        return Visited(
            state=state,
            actions_taken=tuple(self._taken),
            ticks=self._ticks,
            agents=agents,
            outage=str(outage) if outage else "",
        )

    def _loop(self, *, approve: bool) -> State:
        engine, grace = self._engine, self._engine.grace.is_on()
        while True:
            sight = engine.poller.sight
            saved = engine.tick(grace=grace)
            self._ticks += 1
            self._taken.extend(saved.actions_taken)
            engine.tell(saved)
            phase = saved.state.sprint.phase
            if phase == "approval" and approve:
                engine.ledger.tell(engine.sprint, [PlanApproved()])
                approve = False
                continue
            if engine.bell.faults or (phase == "ended" and sight is not None):
                return saved.state
            next_due: float | None = None
            if self._left() > 0:
                next_due = engine.act(saved.state, sight=sight, grace=grace)
            else:
                # What is still being made ready keeps its lease.
                engine.workers.reconcile(grace=grace)
            if self._is_over(saved, next_due):
                return saved.state
            engine.wake.wait(min(engine.pause(next_due), max(self._left(), _SHORTEST_WAIT_S)))

    def _is_over(self, saved: Saved, next_due: float | None) -> bool:
        """Whether this process would only wait; what it has begun itself it brings to its end."""
        engine = self._engine
        if not (engine.effects.idle and engine.workers.only_shims_work):
            return False
        if self._left() <= 0:
            return True
        soon = next_due is not None and next_due - engine.clock.now() < _SOON_S
        # Facts that a failed rule left are not taken in by this version.
        new = not saved.state.facts_wait and engine.ledger.load(engine.sprint).facts
        return not (saved.changed or soon or new)

    def _left(self) -> float:
        return self._until - time.monotonic()

    def _write_end(self, state: State) -> None:
        """Once, also if an earlier visit died between the end and its files."""
        ledger, key = self._engine.ledger, f"end_written/{state.sprint.id}"
        if ledger.get(key) != str(state.sprint.ended_at):
            self._engine.write_end(state)
            ledger.put(key, str(state.sprint.ended_at))
