"""The ledger of a sprint, found by the sprint's id alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from caloron.domain.supervise import Limits
from caloron.errors import NotFound
from caloron.ledger.ledger import Ledger
from caloron.ledger.locate import ProjectPaths, project_path, require_id
from caloron.ledger.projects import load_project
from caloron.stages.context import TickContext


class _WallClock:
    def now(self) -> float:
        return time.time()


@contextmanager
def within(
    context: TickContext | None, sprint: str, stall_threshold_m: float | None = None
) -> Iterator[TickContext]:
    """What the caller reaches already, or else what belongs to this sprint."""
    if context is not None:
        yield context
        return
    with context_of(sprint, stall_threshold_m) as found:
        yield found


@contextmanager
def context_of(sprint: str, stall_threshold_m: float | None = None) -> Iterator[TickContext]:
    """What a tick of this sprint reaches; limits as its project has them set."""
    name = require_id(sprint, "sprint").rpartition("-")[0]
    paths = ProjectPaths(name, project_path(name)) if name else None
    if paths is None or not paths.ledger.exists():
        raise NotFound(f"there is no sprint {sprint}", hint="caloron history")
    config = load_project(name).config
    minutes = config.stall_threshold_m if stall_threshold_m is None else stall_threshold_m
    limits = Limits(stall_s=minutes * 60, timeout_s=config.timeout_s, grace_s=config.probe_grace_s)
    ledger = Ledger(paths.ledger)
    try:
        yield TickContext(ledger=ledger, clock=_WallClock(), limits=limits)
    finally:
        ledger.close()
