"""The function of the loop and the three graphs of a tick go through the same transitions.

The graphs keep the state in hand, in kv and in the ledger. The table is that of the equivalence
test of the domain, which the graphs know nothing of.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from caloron.domain.model.effects import Action, Describe, ReportProgress
from caloron.domain.model.facts import Fact
from caloron.domain.model.sprint import State
from caloron.domain.rules.supervisor import AgentSeen, Limits
from caloron.engine import tick as tick_module
from caloron.engine.graphs.runtime import GraphRuntime, RunOptions
from caloron.engine.tick import TickResult, tick
from caloron.graph.json_text import Json
from caloron.graph.nodes import Graph, Stage
from caloron.graph.prepare import Prepared, prepare
from caloron.graph.runtime.protocols import Call, Value
from caloron.graph.stage import StageSpec
from caloron.ledger.journal import Journal
from caloron.ledger.ledger import Ledger, Loaded, TickCommit
from caloron.ledger.tick_context import TickContext
from caloron.stages.catalogue import CatalogueStages
from caloron.stages.compositions import composition
from caloron.stages.values import decode_as, decode_state, state_json, to_json
from tests.integration.engine.parts import FixedClock, run_tick_graph
from tests.unit.domain.test_equivalence import (
    HAPPY,
    SPRINT,
    VARIANTS,
    Row,
    action_label,
    letters,
    start,
)

KEY = f"caloron:{SPRINT}:state"
LIMITS = Limits(stall_s=3600, timeout_s=10**6, grace_s=300)


def shipped(name: str, home: GraphRuntime) -> Prepared:
    text = composition(name)
    assert text is not None
    return prepare(text, home.catalogue)


class InHand:
    """`sprint_tick_core`: the caller keeps the state."""

    name = "sprint_tick_core"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = GraphRuntime(folder)
        self.prepared = shipped(self.name, self.home)
        self.kept: Json = {"state": state_json(start()), "interventions": {}}
        self.ticks = 0

    def tick(self, facts: tuple[Fact, ...], now: float, agents: tuple[AgentSeen, ...]) -> Json:
        self.ticks += 1
        inputs = self.inputs(facts, now, agents)
        return self.home.run(self.prepared, inputs, RunOptions(run_id=f"t{self.ticks}")).output

    def inputs(self, facts: tuple[Fact, ...], now: float, agents: tuple[AgentSeen, ...]) -> Json:
        inputs = {
            "facts": to_json(facts),
            "now": now,
            "agents": to_json(agents),
            "limits": to_json(LIMITS),
        }
        return inputs | self.kept

    def after(
        self, facts: tuple[Fact, ...], now: float, agents: tuple[AgentSeen, ...] = ()
    ) -> tuple[State, list[Action]]:
        result = self.tick(facts, now, agents)
        self.kept = {"state": result["state"], "interventions": result["interventions"]}
        rows: list[Action] = decode_as(result["rows"], list[Action], "rows")
        return decode_state(result["state"]), rows

    def close(self) -> None:
        pass


class InKv(InHand):
    """`sprint_tick_kv`: Noether's own stages keep it, and nothing but the projection."""

    name = "sprint_tick_kv"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._kv("kv_set", {"value": self.kept | {"since": ""}})
        self.kept = {"key": KEY}

    def _kv(self, stage: str, inputs: Json) -> Json:
        graph = Graph(stage, "0.1.0", Stage(stage))
        where = {"key": KEY, "namespace": "caloron"}
        prepared = prepare(graph, self.home.catalogue)
        return self.home.run(prepared, inputs | where, RunOptions(run_id="kv")).output

    def after(
        self, facts: tuple[Fact, ...], now: float, agents: tuple[AgentSeen, ...] = ()
    ) -> tuple[State, list[Action]]:
        # Stands for another process that knows only the key.
        self.home = GraphRuntime(self.folder)
        result = self.tick(facts, now, agents)
        kept = self._kv("kv_get", {})
        assert set(kept) == {"state", "interventions", "since"}
        assert kept["state"] == result["state"]
        rows: list[Action] = decode_as(result["rows"], list[Action], "rows")
        return decode_state(kept["state"]), rows


class InLedger:
    """`sprint_tick_stateful`: the tick of the product."""

    def __init__(self, folder: Path) -> None:
        self.ledger = Ledger(folder / "ledger.db")
        self.ledger.db.rows("PRAGMA synchronous = OFF")
        sprint = start().sprint
        self.id = self.ledger.create_sprint(sprint, {}).id
        self.clock = FixedClock()
        self.context = TickContext(ledger=self.ledger, clock=self.clock, limits=LIMITS)

    def after(
        self, facts: tuple[Fact, ...], now: float, agents: tuple[AgentSeen, ...] = ()
    ) -> tuple[State, list[Action]]:
        self.clock.time = now
        self.ledger.append_facts(self.id, [self._here(fact) for fact in facts])
        return self.tick(tuple(self._here(agent) for agent in agents))

    def tick(self, agents: tuple[AgentSeen, ...]) -> tuple[State, list[Action]]:
        stages = _Spied(self.context, to_json(agents))
        return self.finish(run_tick_graph(self.context, self.id, stages), stages.rows)

    def finish(self, result: TickResult, actions: Any) -> tuple[State, list[Action]]:
        assert self.ledger.state(self.id).tasks == result.state.tasks
        journal = Journal(self.ledger, self.id)
        while due := journal.due():
            # The table has their results; an effect that is not done delays the end.
            for entry in due:
                journal.intend(entry)
                journal.record(entry, [])
        rows = json.dumps(to_json(actions)).replace(self.id, SPRINT)
        return result.state, msgspec.json.decode(rows, type=list[Action])

    def _here(self, value: Any) -> Any:
        """Replace the sprint id of the table with the id of this sprint."""
        kind = AgentSeen if isinstance(value, AgentSeen) else Fact
        text = msgspec.json.encode(value).decode().replace(SPRINT, self.id)
        return msgspec.json.decode(text, type=kind)

    def close(self) -> None:
        self.ledger.close()


class InFunction(InLedger):
    """`tick`: the function that the loop runs."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(folder)
        self._patch = patch

    def tick(self, agents: tuple[AgentSeen, ...]) -> tuple[State, list[Action]]:
        committed: list[Action] = []
        commit_tick = self.ledger.commit_tick

        def spy(loaded: Loaded, commit: TickCommit) -> None:
            committed.extend(commit.actions)
            commit_tick(loaded, commit)

        with self._patch.context() as patched:
            patched.setattr(tick_module, "agents_of", lambda _: agents)
            patched.setattr(self.ledger, "commit_tick", spy)
            result = tick(self.context, self.id)
        return self.finish(result, committed)


class _Spied(CatalogueStages):
    def __init__(self, context: TickContext, agents: Json) -> None:
        super().__init__(context)
        self._agents = agents
        self.rows: Any = ()

    def run(self, stage: StageSpec, inputs: Value, call: Call) -> Json | Value:
        if stage.name == "save_tick_state":
            self.rows = inputs.value["tick_result"]["rows"].value
        if stage.name == "check_agent_health" and self._agents:
            inputs = Value({**inputs.value, "agents": self._agents})
        return super().run(stage, inputs, call)


Driver = InHand | InLedger


@pytest.fixture(
    params=[InHand, InKv, InLedger, InFunction], ids=["core", "kv", "stateful", "function"]
)
def driver(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Driver]:
    monkeypatch.setenv("CALORON_HOME", str(tmp_path))
    function = request.param is InFunction
    made: Driver = request.param(tmp_path, *([monkeypatch] if function else []))
    yield made
    made.close()


def labels(actions: list[Action]) -> set[str]:
    reports = ReportProgress | Describe
    return {action_label(action) for action in actions if not isinstance(action, reports)}


def drive(driver: Driver, rows: list[Row], *, echo: bool = False) -> None:
    now, past = itertools.count(100.0), list[Fact]()
    for step, facts, statuses, actions in rows:
        state, planned = driver.after((*facts, *past) if echo else facts, next(now))
        past += facts
        assert (step, letters(state)) == (step, statuses)
        assert labels(planned) == actions, step


def test_the_diamond(driver: Driver) -> None:
    drive(driver, HAPPY)
    state, planned = driver.after((), 999.0)
    assert (state.sprint.phase, planned) == ("ended", [])


@pytest.mark.parametrize("rows", VARIANTS.values(), ids=VARIANTS)
def test_the_variants_of_the_diamond(driver: Driver, rows: list[Row]) -> None:
    drive(driver, rows)


def test_repeated_facts_change_nothing(driver: Driver) -> None:
    drive(driver, HAPPY, echo=True)


def test_a_stall_is_probed_then_restarted_then_handed_to_a_person(driver: Driver) -> None:
    drive(driver, HAPPY[:4])
    seen = AgentSeen(
        item=f"{SPRINT}/task-1/1-implement", task="task-1", role="implement", running_s=0,
        silent_s=0,
    )  # fmt: skip
    expected = [
        (3500.0, "GGP", set()),
        (3601.0, "GGP", {"probe task-1", "comment task-1"}),
        (3800.0, "GGP", set()),
        (3902.0, "GGP", {"comment task-1", "start implement task-1"}),
        (7600.0, "EGP", {"cancel task-1/1-implement", "create_issue task-1"}),
    ]
    for silent, statuses, actions in expected:
        agent = msgspec.structs.replace(seen, running_s=silent, silent_s=silent)
        state, planned = driver.after((), 1000.0 + silent, (agent,))
        assert (silent, letters(state)) == (silent, statuses)
        assert labels(planned) == actions
