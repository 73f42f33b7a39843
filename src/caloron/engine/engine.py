"""The one engine: ticks whenever something happened, until no task can move without a person."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal, Protocol

from caloron.domain.actions import Moved
from caloron.domain.facts import Halt, PlanApproved
from caloron.domain.plan import PlannedTask
from caloron.domain.sprint import AGENT_ROLES, State, main_commit
from caloron.domain.supervise import Limits
from caloron.engine.announcer import Announcer
from caloron.engine.bell import Bell
from caloron.engine.bookkeeping import Bookkeeping
from caloron.engine.effects import Effects
from caloron.engine.grace import Grace
from caloron.engine.poller import Poller
from caloron.engine.run_traces import RunTraces
from caloron.engine.tick import Saved, run_tick, tick_graph
from caloron.engine.told import Told
from caloron.engine.workshop import Workshop, cleaned_plan
from caloron.errors import PreconditionFailed, StoreError
from caloron.git.mirror import Mirror
from caloron.graph.errors import ExecutionError
from caloron.graph.trace import Trace
from caloron.ledger.journal import Journal
from caloron.ledger.ledger import Ledger, StaleTick
from caloron.ledger.locate import home
from caloron.ledger.projects import Project
from caloron.ledger.settings import ProjectConfig
from caloron.ledger.wake import Wake
from caloron.ledger.work import WorkQueue
from caloron.ports import Clock, Forge
from caloron.stages.context import TickContext
from caloron.store import log
from caloron.store.files import is_disk_full

if TYPE_CHECKING:
    from caloron.engine.webhooks import Webhooks

#: Under this key stands when the engine of a sprint began, as long as it has not ended in order.
_ENGINE = "engine"
_LONGEST_WAIT_S = 5.0
#: How long the end of a sprint waits for the deletion of its workspaces.
_TIDY_S = 5.0
_SHORTEST_WAIT_S = 0.05

#: What a person says to a plan: yes, no, not now, these tasks instead, or: the forge decides.
Answer = bool | tuple[PlannedTask, ...] | Literal["wait"] | None


class Watcher(Protocol):
    """Somebody who looks on: the live view, plain lines, or a test."""

    def moved(self, state: State, moves: tuple[Moved, ...]) -> None: ...
    def seen(self, state: State) -> None: ...
    def told(self, line: str) -> None: ...

    def approves(self, state: State, meanwhile: Callable[[], bool]) -> Answer:
        """Yes or no to the plan, or another plan; None: not now, it is kept as no keeps it.

        Whoever thinks about it calls `meanwhile` now and then: True means that it was decided, or
        changed, on the forge.
        """
        ...


class SystemClock:
    def now(self) -> float:
        return time.time()


def _webhooks(config: ProjectConfig, poller: Poller) -> Webhooks | None:
    if not config.webhook:
        return None
    # It loads an HTTP server, which few need.
    from caloron.engine.webhooks import webhooks_of

    return webhooks_of(config, poller.look_now)


class Engine:
    """Drives one sprint of one project; whoever runs it holds the project's lock."""

    def __init__(
        self,
        project: Project,
        ledger: Ledger,
        forge: Forge,
        sprint: str,
        watcher: Watcher,
        *,
        clock: Clock | None = None,
        debug: bool = False,
    ) -> None:
        config = project.config
        self.project = project
        self.ledger = ledger
        self.sprint = sprint
        self.watcher = watcher
        self.clock = clock or SystemClock()
        self.wake = Wake(project.wake)
        self._stop = threading.Event()
        self.bell = Bell(self.wake)
        #: Set with a request to stop: what need not be finished is given up.
        self._stopping = threading.Event()
        state = ledger.state(sprint)
        self._announcer = Announcer(watcher.told, state, switched_off=config.verify == "none")
        self._declined = _declined(state)
        self.books = Bookkeeping(project, ledger, sprint, self.clock, watcher.told)
        mirror = Mirror(project.mirror, forge.remote(), forge.main)
        mirror.ensure()
        self.queue = WorkQueue(
            ledger, sprint, holder=f"engine-{os.getpid()}", lease_ms=int(config.lease_s * 1000)
        )
        show = watcher.told if debug else None
        self.workshop = Workshop(
            project,
            state,
            self.queue,
            mirror,
            self.bell,
            tell=watcher.told,
            show=show,
            stopping=self._stopping,
        )
        self.workers = self.workshop.workers
        self.journal = Journal(ledger, sprint)
        told = Told()
        self.poller = Poller(ledger, sprint, forge, self.bell, config.poll_s, told)
        self.effects = Effects(
            self.journal,
            forge,
            mirror,
            self.workers.runs,
            self.clock,
            self.bell,
            self.workshop.redactor,
            told,
        )
        self.effects.lost = self.poller.lost
        self.effects.sight = lambda: self.poller.sight
        self.grace = Grace(ledger, config.lease_s, _LONGEST_WAIT_S)
        self.webhooks = _webhooks(config, self.poller)
        self.limits = Limits(
            stall_s=config.stall_threshold_m * 60,
            timeout_s=config.timeout_s,
            grace_s=config.probe_grace_s,
        )

    def request_stop(self) -> None:
        """Save and stop at the next opportunity; safe to call from a signal handler."""
        self._stop.set()
        self._stopping.set()
        self.bell.ring()

    def run(self) -> State:
        """Go on until the sprint has ended, somebody asks to stop, or the plan is not approved."""
        self.wake.create()
        self._note_lost_engine()
        with ExitStack() as parts:
            self._close_at_end(parts)
            self.books.take_in(busy=bool(self.queue.in_flight()))
            self.poller.poll()
            self.poller.start()
            self._listen()
            self.workshop.trash.open()
            self.workers.adopt()
            self.workshop.homes.start()
            self.workshop.pool.open()
            state = self._loop()
        self.ledger.put(f"{_ENGINE}/{self.sprint}", "")
        if self._stop.is_set() and state.sprint.phase == "retro":
            # Whoever stops the sprint now has all its results: the rules write the retro.
            self.ledger.tell(self.sprint, [Halt(reason="the sprint was stopped")])
            state = self.tick(grace=True).state
        self.raise_fault()
        if state.sprint.phase == "ended":
            self.write_end(state)
        return state

    def _note_lost_engine(self) -> None:
        """Write down that the last engine of this sprint ended without saying so."""
        key = f"{_ENGINE}/{self.sprint}"
        if since := self.ledger.get(key):
            self.ledger.note_lost_engine(self.sprint, since)
        self.ledger.put(key, f"{self.clock.now():.3f}")

    def write_end(self, state: State) -> None:
        """What is read of a sprint that has ended."""
        if state.sprint.insight_problem:
            self.watcher.told(f"no model looked back: {state.sprint.insight_problem}")
        self.books.write_end()
        self.workshop.homes.write_pages()

    def _listen(self) -> None:
        if self.webhooks is not None:
            self.webhooks.start()
            if self.webhooks.problem:
                self.watcher.told(f"{self.webhooks.problem}; the forge is polled all the same")

    def _loop(self) -> State:
        """Tick, act on it, sleep until something happens."""
        while True:
            grace = self.grace.is_on()
            # Read this before the tick: a poll that finishes during the tick is not in its input.
            sight = self.poller.sight
            saved = self.tick(grace=grace)
            self.tell(saved)
            phase = saved.state.sprint.phase
            if self._stop.is_set() or self.bell.faults or (phase == "ended" and sight is not None):
                return saved.state
            if saved.state.sprint.halted and self.workers.idle:
                return saved.state
            if phase == "approval" and not self._ask(saved.state):
                return self.ledger.state(self.sprint)
            next_due = self.act(saved.state, sight=sight, grace=grace)
            self.wake.wait(self.pause(next_due))

    def tell(self, saved: Saved) -> None:
        """Show what a tick came to, to those who look on and to those who read files."""
        self.books.write_plan(saved.state)
        if saved.moves:
            self.watcher.moved(saved.state, saved.moves)
            self.workshop.pool.refresh(main_commit(saved.state))
        self.watcher.seen(saved.state)
        self._announcer.look(saved.state, self.poller.outage)

    def act(self, state: State, *, sight: int | None, grace: bool) -> float | None:
        """Begin what was decided; the moment at which the next postponed effect is due, if any."""
        next_due = self.effects.dispatch(sight)
        if not grace:
            # Until the shims have renewed, the leases do not tell how many slots are taken.
            self.workshop.meter(state)
            self.workers.dispatch(halted=bool(state.sprint.halted))
            self._notice_empty_purse(state)
        self.workers.reconcile(grace=grace)
        return next_due

    def tick(self, *, grace: bool) -> Saved:
        """Decide and commit, on what is known now."""
        context = TickContext(ledger=self.ledger, clock=self.clock, limits=self.limits, grace=grace)
        while True:
            try:
                return run_tick(context, self.sprint, keep=self._keep_trace)
            except StaleTick as error:
                log.debug("a tick is repeated", error=error)

    def _keep_trace(self, trace: Trace, error: ExecutionError | None) -> None:
        """The last tick that did something is shown by `caloron graph trace tick-<sprint>`."""
        # Nobody stops for a trace that could not be written.
        with log.ignored(StoreError, message="cannot write the trace of a tick"):
            RunTraces(home() / "traces").keep(f"tick-{self.sprint}", tick_graph(), trace, error)

    def _ask(self, state: State) -> bool:
        """Have the plan judged at the terminal or on the forge; False: it stays as it is."""
        if _declined(state) and _declined(state) != self._declined:
            self.watcher.told(f"the plan was declined: {_declined(state)} closed its issue")
            return False
        answer = self.watcher.approves(state, lambda: self._decided_meanwhile(state))
        if answer == "wait":
            return not _declined(state) or _declined(state) != self._declined
        if isinstance(answer, tuple):
            plan = cleaned_plan(answer, self.workshop.redactor)
            self.ledger.edit_plan(self.sprint, plan, self.clock.now())
            self.bell.ring()
        elif answer:
            self.ledger.tell(self.sprint, [PlanApproved()])
            self.bell.ring()
        return bool(answer)

    def _decided_meanwhile(self, asked: State) -> bool:
        """Take in what people do on the forge while somebody at the terminal thinks."""
        sight = self.poller.sight
        saved = self.tick(grace=False)
        self.effects.dispatch(sight)
        if saved.moves:
            self.watcher.moved(saved.state, saved.moves)
        return (
            saved.state.sprint.phase != "approval"
            or _declined(saved.state) != _declined(asked)
            or _plans(saved.state) != _plans(asked)
            or self._stop.is_set()
            or bool(self.bell.faults)
        )

    def _notice_empty_purse(self, state: State) -> None:
        purse = self.workshop.purse
        if not state.sprint.halted and purse.exhausted and self.queue.has_pending(AGENT_ROLES):
            self.ledger.tell(self.sprint, [Halt(reason=str(purse))])
            self.bell.ring()

    def pause(self, next_due: float | None) -> float:
        """How long to sleep when nobody wakes us: thresholds must still be noticed."""
        limits = self.limits
        quarters = min(limits.stall_s, limits.grace_s, limits.timeout_s) / 4
        # While a workspace is made ready, the engine itself renews the lease.
        longest = min(_LONGEST_WAIT_S, quarters, self.queue.lease_ms / 3000)
        if next_due is not None:
            longest = min(longest, next_due - self.clock.now())
        return max(longest, _SHORTEST_WAIT_S)

    def raise_fault(self) -> None:
        """What a thread could not answer for, raised where somebody can."""
        if not self.bell.faults:
            return
        error = self.bell.faults[0]
        if is_disk_full(error, self.project.path):
            raise PreconditionFailed(
                f"the disk is full: {error}",
                hint="free some space there, then `caloron resume`; what was committed is safe",
            ) from error
        if isinstance(error, OSError):
            raise PreconditionFailed(
                f"the machine refused: {error}",
                hint="put that right, then `caloron resume`; what was committed is safe",
            ) from error
        raise error

    def _close_at_end(self, parts: ExitStack) -> None:
        """Leave nothing running that nobody watches; what is recorded is enough to go on.

        The last one is closed first. One that cannot be closed keeps no other from it, and does
        not replace the error for which all of them are closed.
        """
        closes: dict[str, Callable[[], object]] = {
            "wake": self.wake.close,
            # A requested stop does not wait; the next start deletes the rest.
            "trash": lambda: self.workshop.trash.close(0.0 if self._stop.is_set() else _TIDY_S),
            "pool": self.workshop.pool.close,
            "homes": self.workshop.homes.close,
            "workers": self.workers.stop,
            "effects": self.effects.close,
            "poller": self.poller.stop,
        }
        if self.webhooks is not None:
            closes["webhooks"] = self.webhooks.stop
        for name, close in closes.items():
            parts.callback(self._close, name, close)

    def _close(self, name: str, close: Callable[[], object]) -> None:
        try:
            close()
        except Exception as error:  # noqa: BLE001 - raised by `raise_fault`
            log.error("cannot close a part of the engine", part=name, error=error)
            self.bell.fault(error)


def _declined(state: State) -> str:
    """Who closed the issue of a plan that waits."""
    return state.sprint.held_plan.declined if state.sprint.held_plan else ""


def _plans(state: State) -> tuple[PlannedTask, ...]:
    return tuple(task.plan for task in state.tasks.values())
