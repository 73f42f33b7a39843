"""Throws away what is left of a sprint: needs the ledger and the forge, but no agent."""

from __future__ import annotations

from collections.abc import Callable

from caloron.agents import launch
from caloron.agents.trash import Trash
from caloron.domain.actions import Moved
from caloron.domain.discarding import KEY
from caloron.domain.sprint import State
from caloron.domain.supervise import Limits
from caloron.engine.bell import Bell
from caloron.engine.bookkeeping import Bookkeeping
from caloron.engine.effects import Effects
from caloron.engine.engine import SystemClock
from caloron.engine.outcomes import Outcomes
from caloron.engine.poller import Poller
from caloron.engine.runs import RunDirs
from caloron.engine.session import Session
from caloron.engine.tick import Saved, run_tick
from caloron.engine.workshop import identity, known_secrets, runner, sandbox_for
from caloron.errors import CaloronError
from caloron.git.mirror import Mirror
from caloron.ledger.journal import Journal
from caloron.ledger.ledger import StaleTick
from caloron.ledger.wake import Wake
from caloron.ledger.work import WorkQueue
from caloron.stages.context import TickContext
from caloron.store import log
from caloron.store.redact import Redactor

_LONGEST_WAIT_S = 2.0
#: Nobody is at work who could be silent for too long.
_NO_LIMITS = Limits(stall_s=1e9, timeout_s=1e9, grace_s=1e9)


class Discarding:
    """Carries a recorded discard to its end; after a crash, called again, it goes on."""

    def __init__(
        self,
        session: Session,
        sprint: str,
        moved: Callable[[tuple[Moved, ...]], None],
        tell: Callable[[str], None],
    ) -> None:
        project, ledger = session.project, session.ledger
        self._project, self._ledger, self._sprint = project, ledger, sprint
        self._moved = moved
        self._clock = SystemClock()
        self._books = Bookkeeping(project, ledger, sprint, self._clock, tell)
        self._wake = Wake(project.wake)
        self._bell = Bell(self._wake)
        self._runs = RunDirs(project.runs)
        self._mirror = Mirror(project.mirror, session.forge.remote(), session.forge.main)
        self._mirror.ensure()
        self._secrets = known_secrets(project.config)
        self._poller = Poller(ledger, sprint, session.forge, self._bell, project.config.poll_s)
        self._effects = Effects(
            Journal(ledger, sprint),
            session.forge,
            self._mirror,
            self._runs,
            self._clock,
            self._bell,
            Redactor(self._secrets),
        )
        self._effects.only = KEY
        self._trash = Trash(project.path / "trash")

    def run(self, by: str) -> State:
        """Record that nobody wants the sprint, unless that is recorded, and follow it up."""
        self._ledger.discard(self._sprint, by)
        self._wake.create()
        self._trash.open()
        try:
            # What people did meanwhile counts: what they merged is merged.
            self._poller.poll()
            state = self._tick().state
            if state.sprint.discarded:
                self._end_agents(state)
            while state.sprint.phase != "ended" and not self._bell.faults and not state.facts_wait:
                due = self._effects.dispatch()
                pause = _LONGEST_WAIT_S if due is None else due - self._clock.now()
                self._wake.wait(min(max(pause, 0.05), _LONGEST_WAIT_S))
                state = self._tick().state
        finally:
            self._effects.close()
            self._trash.close(_LONGEST_WAIT_S)
            self._wake.close()
        if self._bell.faults:
            raise self._bell.faults[0]
        if state.facts_wait:
            raise CaloronError(f"sprint {self._sprint} cannot be discarded: {state.sprint.halted}")
        self._books.write_end()
        return state

    def _tick(self) -> Saved:
        context = TickContext(ledger=self._ledger, clock=self._clock, limits=_NO_LIMITS)
        while True:
            try:
                saved = run_tick(context, self._sprint)
            except StaleTick as error:
                log.debug("a tick is repeated", error=error)
                continue
            self._moved(saved.moves)
            return saved

    def _end_agents(self, state: State) -> None:
        """Whoever an engine that died left at work; what they wrote is saved first."""
        config = self._project.config
        queue = WorkQueue(self._ledger, self._sprint, holder="discard", lease_ms=1000)
        outcomes = Outcomes(
            queue,
            self._mirror,
            sandbox_for(self._mirror.path, unsandboxed=state.sprint.unsandboxed),
            self._runs,
            lambda name: runner(self._project, name),
            identity=identity(config),
            secrets=self._secrets,
            disk_mb=config.disk_mb,
        )
        outcomes.discard = self._trash.put
        for item, token in self._runs.with_workspace(self._sprint):
            launch.stop(self._runs.of(item, token))
            self._account(outcomes, item, token)
            outcomes.save_and_remove(item, token)

    def _account(self, outcomes: Outcomes, item: str, token: int) -> None:
        try:
            cut = outcomes.interrupted(item, token)
        except CaloronError as error:
            task = item.split("/")[1]
            log.warning("the cost of an attempt is not known", error=error, item=item, task=task)
            # Its framework is not here any more, and nobody else can read what it used.
            return
        if cut:
            self._ledger.tell(self._sprint, [cut])
