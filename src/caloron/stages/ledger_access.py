"""Opens the ledger of a sprint for effectful stages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from caloron.domain.rules.supervisor import Limits
from caloron.errors import NotFound
from caloron.ledger.ledger import Ledger
from caloron.ledger.locate import ProjectPaths, project_path, require_id
from caloron.ledger.projects import load_project
from caloron.ports import Clock


class TickContext(msgspec.Struct, frozen=True, kw_only=True):
    """What effectful stages may use: the ledger, the clock and the limits."""

    ledger: Ledger
    clock: Clock
    limits: Limits
    #: The loop itself was suspended for longer than a lease: agents are not judged by that gap.
    grace: bool = False


class _WallClock:
    def now(self) -> float:
        return time.time()


@contextmanager
def ensure_context(
    context: TickContext | None, sprint: str, stall_threshold_m: float | None = None
) -> Iterator[TickContext]:
    """Use the context of the caller, else open one for this sprint."""
    if context is not None:
        yield context
        return
    with open_context(sprint, stall_threshold_m) as opened:
        yield opened


@contextmanager
def open_context(sprint: str, stall_threshold_m: float | None = None) -> Iterator[TickContext]:
    """Open the ledger of a sprint, with the limits of its project."""
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
