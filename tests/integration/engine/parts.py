"""A ledger with a running sprint and the engine's own parts around it, without its loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from caloron.domain.model.sprint import Planning, Sprint
from caloron.engine.runs.run_dirs import RunDirs
from caloron.engine.signals import LoopSignal
from caloron.ledger.journal import Journal
from caloron.ledger.ledger import Ledger
from caloron.ledger.work_queue import WorkQueue
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
