"""A ledger with a running sprint and the engine's own parts around it, without its loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from caloron.domain.model.effects import Effect, Moved, StartWork
from caloron.domain.model.sprint import Planning, Sprint
from caloron.engine.forge.executor import EffectExecutor
from caloron.engine.forge.operations import ForgeOperations
from caloron.engine.forge.poller import Poller, SnapshotFilter
from caloron.engine.graphs.tick_graph import tick_graph
from caloron.engine.runs.run_dirs import RunDirs
from caloron.engine.signals import LoopSignal
from caloron.engine.tick import TickResult
from caloron.graph.errors import ExecutionError
from caloron.graph.json_text import Json
from caloron.graph.runtime.protocols import StageRunner
from caloron.graph.runtime.run import RunLimits, Settings, run
from caloron.ledger.journal import Entry, Journal
from caloron.ledger.ledger import Ledger, TickCommit
from caloron.ledger.tick_context import TickContext
from caloron.ledger.work_queue import WorkQueue
from caloron.stages.values import decode_as, decode_state
from caloron.store.redact import Redactor
from caloron.store.wake import Wake
from caloron.testing import planned


class FixedClock:
    """Stands still unless a test moves it."""

    def __init__(self, time: float = 1000.0) -> None:
        self.time = time

    def now(self) -> float:
        return self.time


class Parts:
    """The sprint `shop-1` of two tasks, `a` and `b`."""

    def __init__(self, home: Path, *needs_of_b: str, **settings: Any) -> None:
        self.home = home
        self.clock = FixedClock()
        self.ledger = Ledger(home / "ledger.sqlite")
        # These tests kill processes and not the machine, so fsync is not needed.
        self.ledger.db.rows("PRAGMA synchronous = OFF")
        plan = Planning(given_plan=(planned("a"), planned("b", *needs_of_b)))
        sprint = Sprint(id="shop", number=0, goal="a shop", planning=plan, **settings)
        self.sprint = self.ledger.create_sprint(sprint, {}).id
        self.journal = Journal(self.ledger, self.sprint)
        self.queue = WorkQueue(self.ledger, self.sprint, holder="test", lease_ms=3_600_000)
        self.signal = LoopSignal(Wake(home / "wake"))
        self.runs = RunDirs(home / "runs")

    def operations(self, forge: Any, mirror: Any) -> ForgeOperations:
        return ForgeOperations(
            forge, mirror, Redactor(), self.clock, lambda: self.ledger.state(self.sprint)
        )

    def executor(self, operations: ForgeOperations, poller: Poller | None = None) -> EffectExecutor:
        return EffectExecutor(
            self.journal, operations, self.runs, self.clock, self.signal, poller=poller
        )

    def poller_of(
        self, forge: Any, interval_s: float = 600.0, reported: SnapshotFilter | None = None
    ) -> Poller:
        return Poller(self.ledger, self.sprint, forge, self.signal, interval_s, reported)

    def plan(self, *actions: Effect | StartWork) -> None:
        loaded = self.ledger.load(self.sprint)
        self.ledger.commit_tick(loaded, TickCommit(state=loaded.state, actions=actions))

    def entry(self) -> Entry:
        (entry,) = self.journal.due()
        return entry

    def facts(self) -> tuple[msgspec.Struct, ...]:
        return self.ledger.load(self.sprint).facts


def run_tick_graph(context: TickContext, sprint: str, stages: StageRunner) -> TickResult:
    """Run the shipped graph of a tick once; an error of a stage is raised as it is."""
    # As in the loop: no hash of a value is computed, and the state may have any size.
    settings = Settings(hashes=False, limits=RunLimits(value_characters=None))
    try:
        outcome = run(tick_graph(), {"sprint_id": sprint}, stages, settings)
    except ExecutionError as error:
        raise error.__cause__ or error from None
    answer: Json = outcome.answer.value
    return TickResult(
        state=decode_state(answer["state"]),
        moves=decode_as(answer["moves"], tuple[Moved, ...], "moves"),
        actions_taken=tuple(answer["actions_taken"]),
        changed=answer["changed"],
    )
