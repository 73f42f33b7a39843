"""The tick as a graph: against one process for each stage, from a cold start, and node by node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import Measure, alternate, median, ratio
from benchmarks.sprints import home, our_program
from benchmarks.startup import timed
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.sprint import Planning, Sprint
from caloron.domain.rules.supervisor import Limits
from caloron.engine.graphs.tick_graph import tick_graph
from caloron.engine.signals import SystemClock
from caloron.engine.tick import tick
from caloron.graph.catalogue import Catalogue
from caloron.graph.prepare import Prepared, prepare
from caloron.graph.runners.functions import FunctionRunner
from caloron.graph.runtime.protocols import Call, Value
from caloron.graph.runtime.run import Settings
from caloron.graph.runtime.run import run as run_graph
from caloron.graph.stage import PURE, StageSpec, define
from caloron.graph.types import NUMBER, record
from caloron.ledger.ledger import Ledger
from caloron.stages.ledger_access import TickContext

_TASKS = 100
_NODES = 10_000
_COLD_RUNS = 15


def run() -> list[Measure]:
    return [_tick_beside_processes(), _cold_tick(), *_nodes(), _growth()]


def _tick_beside_processes() -> Measure:
    with _idle_sprint(_TASKS) as (context, sprint):
        each = _EachAProcess()

        def inside() -> float:
            began = time.perf_counter()
            tick(context, sprint)
            return time.perf_counter() - began

        def run_in_processes() -> float:
            began = time.perf_counter()
            run_graph(tick_graph(), {"sprint_id": sprint}, each)
            return time.perf_counter() - began

        mine, theirs = alternate(5, inside, run_in_processes)
        busy = [inside() for _ in range(50)]
    return Measure(
        f"tick over {_TASKS} idle tasks, speed of one process per stage",
        ratio(theirs, mine),
        "x",
        20,
        "more",
        f"{median(busy) * 1000:.1f} ms in one process; {median(theirs) * 1000:.0f} ms as"
        f" {each.calls // len(theirs)} processes",
    )


class _EachAProcess:
    """Runs each stage as a program of its own, as a host without our engine does."""

    def __init__(self) -> None:
        self.calls = 0

    def code_version(self, stage: StageSpec) -> str | None:
        return stage.implementation_hash

    def run(self, stage: StageSpec, value: Value, call: Call) -> Any:
        self.calls += 1
        done = subprocess.run(
            (sys.executable, "-m", "caloron.stages", stage.name),
            input=value.text.encode(),
            stdout=subprocess.PIPE,
            check=True,
        )
        return json.loads(done.stdout)


@contextmanager
def _idle_sprint(tasks: int) -> Iterator[tuple[TickContext, str]]:
    """A project with a sprint whose tasks all wait for their issues."""
    with tempfile.TemporaryDirectory(prefix="caloron-bench-") as folder:
        before = os.environ.get("CALORON_HOME")
        os.environ["CALORON_HOME"] = folder
        try:
            subprocess.run((*our_program(), "init", "bench", "--framework", "stub"),
                           check=True, capture_output=True)  # fmt: skip
            ledger = Ledger(Path(folder, "projects", "bench", "ledger.sqlite"))
            plan = tuple(_planned(n) for n in range(tasks))
            new_sprint = Sprint(id="bench", number=0, goal="g", planning=Planning(given_plan=plan))
            sprint = ledger.create_sprint(new_sprint, {}).id
            context = TickContext(ledger=ledger, clock=SystemClock(), limits=Limits())
            while tick(context, sprint).changed:
                pass
            yield context, sprint
            ledger.close()
        finally:
            del os.environ["CALORON_HOME"]
            if before is not None:
                os.environ["CALORON_HOME"] = before


def _planned(number: int) -> PlannedTask:
    needs = (f"t{number - 1}",) if number % 3 else ()
    return PlannedTask(
        id=f"t{number}", title=f"Task {number}", agent_prompt="Do it. " * 40, depends_on=needs
    )


def _cold_tick() -> Measure:
    """Measure a tick while an agent is at work and nothing happened."""
    with home() as bench_home:
        bench_home.write(
            {"a": []}, [{"when": {"role": "implement"}, "sleep_s": 3600, "output": "x"}]
        )
        plan = str(bench_home.directory / "plan.json")
        bench_home.run(
            "sprint", "Measure this", "--plan", plan, "--begin-only", "--project", "bench"
        )
        tick = (*our_program(), "tick", "--sprint", "bench-1", "--output", "json")
        for _ in range(40):
            result = subprocess.run(
                tick, env=bench_home.environment, capture_output=True, check=True
            )
            if json.loads(result.stdout)["data"]["statuses"].get("a") == "InProgress":
                break
        mine, bare = alternate(
            _COLD_RUNS,
            timed(tick, bench_home.environment),
            timed((sys.executable, "-c", "pass"), bench_home.environment),
        )
        bench_home.run("stop", "--project", "bench")
    return Measure(
        "`caloron tick` cold, on an idle sprint",
        median(mine) * 1000,
        "ms",
        300,
        note=f"a bare interpreter {median(bare) * 1000:.0f} ms; medians of {_COLD_RUNS} runs",
    )


_ADD = define("add_one", record(n=NUMBER), record(n=NUMBER), effects=(PURE,),
              implementation_hash="add_one 1")  # fmt: skip


def _add(value: Any) -> Any:
    return {"n": value["n"] + 1}


def _chain(nodes: int) -> str:
    stages = [{"op": "Stage", "id": "add_one"}] * nodes
    root = {"op": "Sequential", "stages": stages}
    return json.dumps({"description": "d", "version": "0.1.0", "root": root})


def _nodes() -> list[Measure]:
    catalogue, functions = Catalogue([_ADD]), FunctionRunner()
    functions.add(_ADD, _add)
    text = _chain(_NODES)
    prepared: list[Prepared] = []

    def checked() -> float:
        began = time.perf_counter()
        prepared[:] = [prepare(text, catalogue)]
        return time.perf_counter() - began

    def ran() -> float:
        began = time.perf_counter()
        run_graph(prepared[0], {"n": 0}, functions)
        return time.perf_counter() - began

    def called() -> float:
        value: Any = {"n": 0}
        began = time.perf_counter()
        for _ in range(_NODES):
            value = _add(value)
        return time.perf_counter() - began

    checks, runs, calls = alternate(5, checked, ran, called)
    each = 1e6 / _NODES
    plain = f"a plain call {median(calls) * each:.2f} µs"
    return [
        Measure("reading and checking one node", median(checks) * each, "µs", note=plain),
        Measure("running one node, hashes and trace included", median(runs) * each, "µs",
                note=plain),
    ]  # fmt: skip


def _growth() -> Measure:
    catalogue, functions = Catalogue([_ADD]), FunctionRunner()
    functions.add(_ADD, _add)

    def full_run(nodes: int) -> Callable[[], float]:
        text = _chain(nodes)

        def timed_run() -> float:
            began = time.perf_counter()
            run_graph(prepare(text, catalogue), {"n": 0}, functions, Settings())
            return time.perf_counter() - began

        return timed_run

    large, small = alternate(5, full_run(_NODES), full_run(_NODES // 4))
    return Measure(
        f"{_NODES:,} nodes read, checked and run, of four times a quarter",
        ratio(large, small) / 4,
        "x",
        1.5,
        note=f"{median(large):.2f} s; linear is 1",
    )
