"""Every benchmark runs to its end, in a small size: `make bench` must not break unnoticed."""

from __future__ import annotations

from importlib import import_module
from math import isfinite
from typing import Any

import pytest

from benchmarks import __main__ as bench

#: The settings of each benchmark that decide how long it takes.
SMALL: dict[str, dict[str, Any]] = {
    "claims": {"_ROUNDS": 3},
    "dispatch": {"_CHAIN": 3},
    "dag": {"_TASKS": 4, "_SLOTS": 2, "_IMPLEMENT_S": (0.1, 0.2), "_REVIEW_S": 0.1},
    "growth": {"_SIZES": (1_000, 2_000), "_ROUNDS": 2},
    "ending": {"_SIZES": (2, 8), "_ROUNDS": 1},
    # So many events that a start which replays them does not come to its first agent in time.
    "restart": {"_SIZES": (1_000, 100_000), "_ROUNDS": 1},
    "memory": {"_AGENTS": 2},
    "idle": {"_SETTLE_S": 0.1, "_WATCHED_S": 1.0},
    "startup": {"_RUNS": 1, "_TASKS": 1, "rival_program": lambda: None},
    "reading": {"_FEW": 2, "_MANY": 4, "_RUNS": 1, "_TASKS": 1},
    "live": {"_TASKS": 2, "_AT_WORK": 1, "_SETTLE_S": 0.1, "_WATCHED_S": 2.0},
    "events": {"_SMALL": 10_000, "_LARGE": 100_000},
    "sandbox": {"_RUNS": 2},
    "starting": {"_FILES": 100, "_WARM": 2, "_COLD": 1},
    "many": {"_AGENTS": 2, "_WORK": "sleep 4", "_LEASE_S": 2.0},
    "agents": {"_ROUNDS": 2, "_RUNS": 1, "_ITEMS": 100},
    "forges": {"_CHAIN": 2, "_ISSUES": 3, "_SPRINTS": 1, "_IDLE": 2},
    "graphs": {"_TASKS": 3, "_NODES": 100, "_COLD_RUNS": 1},
}
#: A benchmark may keep some of its settings in a second module.
MORE = {"forges": "forge_ticks"}


@pytest.mark.parametrize("name", bench.NAMES)
def test_a_benchmark_runs_to_its_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = [import_module(f"benchmarks.{each}") for each in (name, MORE.get(name)) if each]
    for setting, value in SMALL[name].items():
        (module,) = [each for each in modules if setting in vars(each)]
        monkeypatch.setattr(module, setting, value)
    monkeypatch.setattr("benchmarks.sprints._PATIENCE_S", 60.0)
    measures = modules[0].run()
    assert measures
    assert all(isfinite(measure.value) for measure in measures)
