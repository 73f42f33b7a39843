"""One pass over a sprint, as cron runs them: poll, decide, do what is due, and exit.

Agents live on in their shims; the next pass collects their results. A pass that dies is simply run
again: everything that it needs is in the ledger.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from caloron.agents.supervise import launch
from caloron.domain.model.facts import Halt, PlanApproved
from caloron.domain.model.sprint import State
from caloron.domain.rules.supervisor import Limits
from caloron.engine.loop import Engine
from caloron.engine.runs.run_dirs import RunDirs
from caloron.engine.session import exclusive
from caloron.engine.signals import LineListener, SystemClock
from caloron.engine.tick import TickResult, tick
from caloron.errors import ForgeUnavailable, InUse
from caloron.ledger.ledger import Ledger
from caloron.ledger.locate import project_of_sprint
from caloron.ledger.projects import Project, load_project
from caloron.ledger.state_file import kv_path
from caloron.ledger.tick_context import TickContext
from caloron.ledger.work_queue import WorkQueue

#: The run waits for effects that are due this soon.
_SOON_S = 2.0
_SHORTEST_WAIT_S = 0.05
#: The key is part of stored ledgers.
_DRIVEN_BY_TICKS = "visited/{}"
_HALT = Halt(reason="it was stopped with `caloron stop`")


def is_driven_by_ticks(ledger: Ledger, sprint: str) -> bool:
    """True if one-shot runs drive a sprint, so that it goes on though nothing runs here now."""
    return bool(ledger.get(_DRIVEN_BY_TICKS.format(sprint)))


def halt(engine: Engine) -> None:
    """End the agents that one-shot runs left at work, and let later runs start none."""
    with engine.opened():
        engine.ledger.append_facts(engine.sprint, [_HALT])
        engine.workers.adopt()
        engine.workers.stop()
        engine.tick(grace=True)
    engine.raise_error()


def halt_without_forge(project: Project, ledger: Ledger, sprint: str) -> None:
    """End the agents though no engine can be made; the next engine saves their work."""
    ledger.append_facts(sprint, [_HALT])
    runs = RunDirs(project.runs)
    queue = WorkQueue(ledger, sprint, holder="stop", lease_ms=0)
    for lease in queue.in_flight():
        launch.stop(runs.of(lease.item, lease.token))
    context = TickContext(ledger=ledger, clock=SystemClock(), limits=Limits(), grace=True)
    tick(context, sprint)


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a one-shot run."""

    state: State
    #: The decisions, in the words of the stages.
    actions_taken: tuple[str, ...]
    ticks: int
    agents: int
    #: Why the forge was not polled, if it did not answer.
    outage: str


class OneShotRun:
    """Drives an engine until nothing is left to do at once."""

    def __init__(self, engine: Engine, *, limit_s: float, approve: bool = False) -> None:
        """`approve` says yes to a plan that waits."""
        self._engine = engine
        self._until = time.monotonic() + limit_s
        self._approve = approve
        self._actions_taken: list[str] = []
        self._ticks = 0

    def run(self) -> RunSummary:
        engine = self._engine
        if not is_driven_by_ticks(engine.ledger, engine.sprint):
            engine.ledger.put(_DRIVEN_BY_TICKS.format(engine.sprint), "yes")
        with engine.opened():
            engine.exports.read_edits(busy=bool(engine.queue.in_flight()))
            engine.poller.poll_once()
            engine.workers.adopt()
            state = engine.drive(self._while_busy)
            agents = len(engine.queue.in_flight())
            if self._ticks > 1:
                engine.runtime.agent_dirs.export_sprint()
        engine.raise_error()
        if state.sprint.phase == "ended":
            self._write_end(state)
        outage = engine.poller.outage
        return RunSummary(
            state=state,
            actions_taken=tuple(self._actions_taken),
            ticks=self._ticks,
            agents=agents,
            outage=str(outage) if outage else "",
        )

    def _while_busy(self, result: TickResult, epoch: int | None, grace: bool) -> float | None:
        engine, phase = self._engine, result.state.sprint.phase
        self._ticks += 1
        self._actions_taken.extend(result.actions_taken)
        if phase == "approval" and self._approve:
            engine.ledger.append_facts(engine.sprint, [PlanApproved()])
            self._approve = False
            return 0.0
        if phase == "ended" and epoch is not None:
            return None
        next_due: float | None = None
        if self._left_s() > 0:
            next_due = engine.act(result.state, epoch=epoch, grace=grace)
        else:
            # Workspaces that are still being prepared keep their lease.
            engine.workers.reconcile(grace=grace)
        if self._would_only_wait(result, next_due):
            return None
        return min(engine.wait_s(next_due), max(self._left_s(), _SHORTEST_WAIT_S))

    def _would_only_wait(self, result: TickResult, next_due: float | None) -> bool:
        """True if this process can exit; it finishes what it has begun itself."""
        engine = self._engine
        if not (engine.effects.idle and engine.workers.only_shims_work):
            return False
        if self._left_s() <= 0:
            return True
        due_soon = next_due is not None and next_due - engine.clock.now() < _SOON_S
        # Facts that wait because a rule failed are not handled by this version.
        new_facts = not result.state.facts_wait and engine.ledger.load(engine.sprint).facts
        return not (result.changed or due_soon or new_facts)

    def _left_s(self) -> float:
        return self._until - time.monotonic()

    def _write_end(self, state: State) -> None:
        """Write the final files once, also if an earlier run died before it wrote them."""
        ledger, key = self._engine.ledger, f"end_written/{state.sprint.id}"
        if ledger.get(key) != str(state.sprint.ended_at):
            self._engine.write_end(state)
            ledger.put(key, str(state.sprint.ended_at))


def run_once(sprint: Any, message: Callable[[str], None], limit_s: float) -> dict[str, Any]:
    """Run one pass of a sprint; the answer has the form of the tick's graph."""
    paths = project_of_sprint(sprint)
    answer = {"persisted_path": str(kv_path(sprint)), "skipped": False, "ended": False}
    try:
        with exclusive(load_project(paths.name)) as session:
            engine = session.engine(sprint, LineListener(message))
            summary = OneShotRun(engine, limit_s=limit_s).run()
    except InUse:
        return answer | {"actions_taken": [], "errors": [], "skipped": True}
    except ForgeUnavailable as error:
        return answer | {"actions_taken": [], "errors": [str(error)]}
    return answer | {
        "actions_taken": list(summary.actions_taken),
        "errors": [summary.outage] if summary.outage else [],
        "ended": summary.state.sprint.phase == "ended",
    }
