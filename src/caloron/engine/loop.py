"""Drives one sprint: tick, act on the decision, sleep until something happens.

`Engine.drive` is the only loop. Its drivers decide how long it goes on: `Engine.run` to the end of
the sprint, `OneShotRun` for one pass of cron, `Engine.discard` until everything is thrown away.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from caloron.domain.model.facts import Halt, PlanApproved
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.roles import AGENT_ROLES
from caloron.domain.model.sprint import State
from caloron.domain.rules.supervisor import Limits
from caloron.engine.exports import SprintExports
from caloron.engine.forge.connect import open_mirror
from caloron.engine.forge.executor import EffectExecutor
from caloron.engine.forge.operations import ForgeOperations
from caloron.engine.forge.poller import Poller, SnapshotFilter
from caloron.engine.runs.runtime import SprintRuntime, cleaned_plan
from caloron.engine.signals import Announcer, Listener, LoopSignal, SystemClock
from caloron.engine.tick import TickResult, tick
from caloron.engine.traces import RunTraces
from caloron.errors import CaloronError, PreconditionFailed, StoreError
from caloron.ledger.journal import Journal
from caloron.ledger.ledger import Ledger
from caloron.ledger.locate import home
from caloron.ledger.projects import Project
from caloron.ledger.settings import ProjectConfig
from caloron.ledger.tick_context import TickContext
from caloron.ledger.work_queue import WorkQueue
from caloron.ports import Forge
from caloron.store import log
from caloron.store.files import is_disk_full
from caloron.store.lock import boot_id
from caloron.store.wake import Wake

if TYPE_CHECKING:
    from caloron.engine.forge.webhooks import Webhooks

#: The ledger keeps the start of a sprint's engine under this key until the engine ends in order.
_ENGINE = "engine"
_SLEPT = "slept"
_LONGEST_WAIT_S = 5.0
_SHORTEST_WAIT_S = 0.05
#: How long the end of an engine waits for the deletion of workspaces.
_TIDY_S = 5.0

#: Acts on a tick and returns how long to wait for the next one; None ends the loop. Arguments:
#: the tick's result, the poller's epoch before the tick, and whether a grace period is on.
Driver = Callable[[TickResult, int | None, bool], float | None]


class SleepDetector:
    """Detects that this machine slept, and then grants one lease of grace.

    A laptop sleeps with its lid shut, a container is paused: agents slept too, and their leases
    look expired until they renew them. The clock used here counts the time since the boot, sleep
    included, and cannot be set.
    """

    def __init__(self, ledger: Ledger, lease_s: float, longest_wait_s: float) -> None:
        """`longest_wait_s`: a running loop asks at least this often."""
        self._ledger = ledger
        self._lease_s = lease_s
        self._longest_wait_s = longest_wait_s
        self._boot = boot_id() or "-"
        self._asked_at = 0.0
        self._slept, self._until = self._recorded()

    def in_grace(self) -> bool:
        """True while no lease may be judged; call this in every pass of the loop."""
        now, before = _since_boot(), self._asked_at
        self._asked_at = now
        slept = now - time.clock_gettime(time.CLOCK_MONOTONIC)
        was_paused = bool(before) and now - before > self._lease_s + self._longest_wait_s
        if was_paused or slept - self._slept > self._lease_s:
            self._slept, self._until = slept, now + self._lease_s
            # The machine may have slept between two processes.
            self._ledger.put(_SLEPT, f"{self._boot} {slept:.1f} {self._until:.1f}")
        return now < self._until

    def _recorded(self) -> tuple[float, float]:
        """Return the time slept and the end of the grace, as an earlier process recorded them."""
        now = _since_boot()
        recorded = self._ledger.get(_SLEPT).split()
        if len(recorded) == 3 and recorded[0] == self._boot:
            until = float(recorded[2])
            return float(recorded[1]), until if until <= now + self._lease_s else 0.0
        slept = now - time.clock_gettime(time.CLOCK_MONOTONIC)
        self._ledger.put(_SLEPT, f"{self._boot} {slept:.1f} 0.0")
        return slept, 0.0


def _since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Engine:
    """Drives one sprint of one project; its process holds the project's lock."""

    def __init__(
        self,
        project: Project,
        ledger: Ledger,
        forge: Forge,
        sprint: str,
        listener: Listener,
        *,
        debug: bool = False,
        only_effects: str = "",
    ) -> None:
        """`only_effects`: perform only effects whose keys begin with this text."""
        config = project.config
        self.project = project
        self.ledger = ledger
        self.sprint = sprint
        self.listener = listener
        self.clock = SystemClock()
        self.wake = Wake(project.wake)
        self.signal = LoopSignal(self.wake)
        self._stop_requested = threading.Event()
        self._keep_agents = False
        #: Set by a request to stop and at the end: the parts give up what they need not finish.
        self._stopping = threading.Event()
        state = ledger.state(sprint)
        self._announcer = Announcer(
            listener.message, state, verification_off=config.verify == "none"
        )
        self._declined = _declined(state)
        self.exports = SprintExports(project, ledger, sprint, self.clock, listener.message)
        mirror = open_mirror(project, forge)
        self.queue = WorkQueue(
            ledger, sprint, holder=f"engine-{os.getpid()}", lease_ms=int(config.lease_s * 1000)
        )
        self.runtime = SprintRuntime(
            project,
            state,
            self.queue,
            mirror,
            self.signal,
            message=listener.message,
            show_prompt=listener.message if debug else None,
            stopping=self._stopping,
        )
        self.workers = self.runtime.workers
        self.journal = Journal(ledger, sprint)
        reported = SnapshotFilter()
        self.poller = Poller(ledger, sprint, forge, self.signal, config.poll_s, reported)
        self.effects = EffectExecutor(
            self.journal,
            ForgeOperations(
                forge, mirror, self.runtime.redactor, self.clock, lambda: ledger.state(sprint)
            ),
            self.workers.runs,
            self.clock,
            self.signal,
            reported=reported,
            poller=self.poller,
            only=only_effects,
        )
        self._sleep_detector = SleepDetector(ledger, config.lease_s, _LONGEST_WAIT_S)
        self.webhooks = _webhooks(config, self.poller)
        self.limits = Limits(
            stall_s=config.stall_threshold_m * 60,
            timeout_s=config.timeout_s,
            grace_s=config.probe_grace_s,
        )

    def request_stop(self, *, keep_agents: bool = False) -> None:
        """Save and stop at the next opportunity; safe to call from a signal handler.

        `keep_agents`: agents at work go on without this process, for the next one to adopt.
        """
        self._keep_agents = keep_agents
        self._stop_requested.set()
        self._stopping.set()
        self.signal.notify()

    def run(self) -> State:
        """Go on until the sprint ends, a stop is requested, or the plan is not approved."""
        self._note_lost_engine()
        with self.opened(background=True):
            self.exports.read_edits(busy=bool(self.queue.in_flight()))
            self.poller.poll()
            self.poller.start()
            self._listen()
            self.workers.adopt()
            self.runtime.pool.open()
            state = self.drive(self._until_end)
        self.ledger.put(f"{_ENGINE}/{self.sprint}", "")
        if state.sprint.phase == "approval":
            # The plan may have been changed while a person was asked.
            state = self.ledger.state(self.sprint)
        if (
            self._stop_requested.is_set()
            and not self._keep_agents
            and state.sprint.phase == "retro"
        ):
            # The stopped sprint has all its results: the rules write the retro.
            self.ledger.append_facts(self.sprint, [Halt(reason="the sprint was stopped")])
            state = self.tick(grace=True).state
        self.raise_error()
        if state.sprint.phase == "ended":
            self.write_end(state)
        return state

    def discard(self, by: str) -> State:
        """Record that the sprint is discarded, and carry that to its end; no agent is started.

        After a crash, run it again and it goes on. The engine is made with `only_effects` set to
        the key of discard effects.
        """
        self.ledger.discard(self.sprint, by)
        with self.opened():
            # Changes that people made meanwhile count: what they merged is merged.
            self.poller.poll()
            result = self.tick(grace=True)
            self._report(result)
            if result.state.sprint.discard.by:
                self.workers.end_orphans()
            state = self.drive(self._until_discarded)
        self.raise_error()
        if state.facts_wait:
            reason = state.sprint.availability.pause_reason
            raise CaloronError(f"sprint {self.sprint} cannot be discarded: {reason}")
        self.exports.write_end()
        return state

    def _until_discarded(self, result: TickResult, epoch: int | None, grace: bool) -> float | None:
        if result.state.sprint.phase == "ended" or result.state.facts_wait:
            return None
        if epoch is None:
            self.poller.poll_once()
        return self.wait_s(self.effects.dispatch(epoch))

    @contextmanager
    def opened(self, *, background: bool = False) -> Iterator[None]:
        """Open the engine and close it again: what the ledger holds is enough to go on.

        `background`: close the threads of `run` too, and end its agents. The part that is added
        last is closed first. A part that cannot be closed keeps no other from it, and does not
        replace the error for which all of them are closed.
        """
        closes: dict[str, Callable[[], object]] = {
            "wake": self.wake.close,
            "trash": self._close_trash,
        }
        if background:
            closes["pool"] = self.runtime.pool.close
            closes["agent_dirs"] = self.runtime.agent_dirs.export_sprint
            closes["workers"] = self._stop_agents
        closes["effects"] = self.effects.close
        if background:
            closes["poller"] = self.poller.stop
            if self.webhooks is not None:
                closes["webhooks"] = self.webhooks.stop
        self.wake.create()
        with ExitStack() as parts:
            for name, close in closes.items():
                parts.callback(self._close, name, close)
            self.runtime.trash.open()
            yield

    def _stop_agents(self) -> None:
        if not self._keep_agents:
            self.workers.stop()

    def _close_trash(self) -> None:
        # A requested stop does not wait; the next start deletes the rest.
        self.runtime.trash.close(0.0 if self._stop_requested.is_set() else _TIDY_S)

    def _close(self, name: str, close: Callable[[], object]) -> None:
        try:
            close()
        except Exception as error:  # noqa: BLE001 - raised by `raise_error`
            log.error("cannot close a part of the engine", part=name, error=error)
            self.signal.fail(error)

    def drive(self, driver: Driver) -> State:
        """Run ticks until the driver ends the loop or a thread fails."""
        while True:
            grace = self._sleep_detector.in_grace()
            # Read this before the tick: a poll that finishes during the tick is not in its input.
            epoch = self.poller.epoch
            result = self.tick(grace=grace)
            self._report(result)
            if self.signal.errors:
                return result.state
            wait_s = driver(result, epoch, grace)
            if wait_s is None:
                return result.state
            self.wake.wait(wait_s)

    def _until_end(self, result: TickResult, epoch: int | None, grace: bool) -> float | None:
        sprint = result.state.sprint
        if self._stop_requested.is_set() or (sprint.phase == "ended" and epoch is not None):
            return None
        if sprint.availability.pause_reason and self.workers.idle:
            return None
        if sprint.phase == "approval" and not self._ask(result.state):
            return None
        return self.wait_s(self.act(result.state, epoch=epoch, grace=grace))

    def tick(self, *, grace: bool) -> TickResult:
        """Decide on everything that is known now, and commit the decision."""
        context = TickContext(ledger=self.ledger, clock=self.clock, limits=self.limits, grace=grace)
        return tick(context, self.sprint, keep=self._keep_trace)

    def _keep_trace(self, trace: dict[str, Any]) -> None:
        """Keep the last tick that did something for `caloron graph trace tick-<sprint>`."""
        # A trace that cannot be written stops nothing.
        with log.ignored(StoreError, message="cannot write the trace of a tick"):
            RunTraces(home() / "traces").write(f"tick-{self.sprint}", trace)

    def _report(self, result: TickResult) -> None:
        """Show the result of a tick to the listener and in the exported files."""
        self.exports.write_plan(result.state)
        if result.moves:
            self.listener.transitions(result.state, result.moves)
            self.runtime.pool.refresh(result.state.main_commit())
        self.listener.state(result.state)
        self._announcer.announce(result.state, self.poller.outage)

    def act(self, state: State, *, epoch: int | None, grace: bool) -> float | None:
        """Start what was decided; return the time at which the next postponed effect is due."""
        next_due = self.effects.dispatch(epoch)
        if not grace:
            # Until the shims have renewed their leases, the number of free slots is unknown.
            self.runtime.meter(state)
            self.workers.dispatch(
                state.sprint.settings.parallel, halted=bool(state.sprint.availability.pause_reason)
            )
            self._halt_if_budget_exhausted(state)
        self.workers.reconcile(grace=grace)
        return next_due

    def wait_s(self, next_due: float | None) -> float:
        """Return how long to sleep without a signal; thresholds must still be noticed."""
        limits = self.limits
        quarters = min(limits.stall_s, limits.grace_s, limits.timeout_s) / 4
        # While a workspace is prepared, the engine itself renews the lease.
        longest = min(_LONGEST_WAIT_S, quarters, self.queue.lease_ms / 3000)
        if next_due is not None:
            longest = min(longest, next_due - self.clock.now())
        return max(longest, _SHORTEST_WAIT_S)

    def _halt_if_budget_exhausted(self, state: State) -> None:
        budget = self.runtime.budget
        if (
            not state.sprint.availability.pause_reason
            and budget.is_exhausted
            and self.queue.has_pending(AGENT_ROLES)
        ):
            self.ledger.append_facts(self.sprint, [Halt(reason=str(budget))])
            self.signal.notify()

    def _ask(self, state: State) -> bool:
        """Ask for an approval at the terminal or on the forge; False: the plan keeps waiting."""
        declined = _declined(state)
        if declined and declined != self._declined:
            self.listener.message(f"the plan was declined: {declined} closed its issue")
            return False
        approval = self.listener.approve_plan(state, lambda: self._decided_meanwhile(state))
        match approval.answer:
            case "later":
                return False
            case "on_forge":
                return not declined or declined != self._declined
            case "edited":
                plan = cleaned_plan(approval.plan, self.runtime.redactor)
                self.ledger.edit_plan(self.sprint, plan, self.clock.now())
            case "again":
                remark = self.runtime.redactor.text(approval.remark)
                self.ledger.send_back_plan(self.sprint, remark, self.clock.now())
            case "yes":
                self.ledger.append_facts(self.sprint, [PlanApproved()])
        self.signal.notify()
        return True

    def _decided_meanwhile(self, asked: State) -> bool:
        """Handle what people do on the forge while a person at the terminal thinks."""
        epoch = self.poller.epoch
        result = self.tick(grace=False)
        self.effects.dispatch(epoch)
        if result.moves:
            self.listener.transitions(result.state, result.moves)
        return (
            result.state.sprint.phase != "approval"
            or _declined(result.state) != _declined(asked)
            or _plans(result.state) != _plans(asked)
            or self._stop_requested.is_set()
            or bool(self.signal.errors)
        )

    def _note_lost_engine(self) -> None:
        """Record that the last engine of this sprint ended without saying so."""
        key = f"{_ENGINE}/{self.sprint}"
        if since := self.ledger.get(key):
            self.ledger.note_lost_engine(self.sprint, since)
        self.ledger.put(key, f"{self.clock.now():.3f}")

    def write_end(self, state: State) -> None:
        """Write the files of a sprint that has ended."""
        if state.sprint.retro.problem:
            self.listener.message(f"no model looked back: {state.sprint.retro.problem}")
        self.exports.write_end()
        self.runtime.agent_dirs.export_sprint(pages=True)

    def _listen(self) -> None:
        if self.webhooks is not None:
            self.webhooks.start()
            if self.webhooks.problem:
                self.listener.message(f"{self.webhooks.problem}; the forge is polled all the same")

    def raise_error(self) -> None:
        """Raise the first error of a thread here, where a person sees it."""
        if not self.signal.errors:
            return
        error = self.signal.errors[0]
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


def _webhooks(config: ProjectConfig, poller: Poller) -> Webhooks | None:
    if not config.webhook:
        return None
    # This import loads an HTTP server, which few projects need.
    from caloron.engine.forge.webhooks import webhooks_of

    return webhooks_of(config, poller.wake_up)


def _declined(state: State) -> str:
    """The person who closed the issue of a plan that waits."""
    return state.sprint.planning.approval.declined if state.sprint.planning.approval else ""


def _plans(state: State) -> tuple[PlannedTask, ...]:
    return tuple(task.plan for task in state.tasks.values())
