"""Deleting any step from the tick breaks a sprint, for the reason that this step owns.

A whole small sprint runs through the shipped graph on a real ledger; forge and agents are those of
`World`. Each stage of the shipped graph in turn is replaced by one that passes on what it
got, or deleted from the graph.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from inspect import getfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from caloron.domain.rules.supervisor import Limits
from caloron.engine.graphs import tick_graph as tick_module
from caloron.engine.graphs.tick_graph import GRAPH, tick_graph
from caloron.engine.tick import TickResult
from caloron.errors import CaloronError
from caloron.graph.json_text import Json
from caloron.graph.nodes import Stage, walk
from caloron.graph.parser import parse_graph
from caloron.graph.runtime.protocols import Call, Value
from caloron.graph.stage import StageSpec
from caloron.ledger.ledger import StaleTick
from caloron.ledger.state_file import kv_path
from caloron.ledger.tick_context import TickContext
from caloron.stages.catalogue import CatalogueStages, stage_function
from caloron.stages.compositions import composition
from caloron.stages.values import decode_state
from caloron.testing import SprintDriver, new_state
from tests.integration.engine.parts import Parts, run_tick_graph


class Replaced(CatalogueStages):
    """The stages of the catalogue; the test replaces some of them."""

    def __init__(self, context: TickContext, instead: dict[str, Callable[[Json], Json]]) -> None:
        super().__init__(context)
        self._instead = instead

    def run(self, stage: StageSpec, inputs: Value, call: Call) -> Json | Value:
        if stage.name in self._instead:
            return Value(self._instead[stage.name](inputs.value))
        return super().run(stage, inputs, call)


class MiniSprint(Parts):
    """The loop of the engine in one thread, with a forge in memory; task `b` depends on `a`."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, "a")
        self.world = SprintDriver(new_state())
        self.saved: list[TickResult] = []
        self.instead: dict[str, Callable[[Json], Json]] = {}

    def tick(self) -> TickResult:
        self.world.poll()
        self.ledger.append_facts(self.sprint, self.world.facts)
        self.world.facts.clear()
        self.clock.time += 1
        context = TickContext(
            ledger=self.ledger,
            clock=self.clock,
            limits=Limits(stall_s=1200, timeout_s=10**9, grace_s=300),
        )
        saved = run_tick_graph(context, self.sprint, Replaced(context, self.instead))
        self.saved.append(saved)
        return saved

    def drain(self) -> bool:
        """Execute the effects in the journal; return whether there were any."""
        due = self.journal.due()
        for entry in due:
            self.journal.intend(entry)
            facts = self.world.facts_of(entry.effect)
            self.journal.record(entry, facts)
        return bool(due)

    def work(self) -> bool:
        """Let one agent succeed; return whether there was one."""
        roles = ("implement", "review", "fix", "resolve", "check", "verify")
        claimed = self.queue.claim(roles, cap=9)
        if claimed is None:
            return False
        start = claimed.start
        self.world.queue[claimed.item] = (start.task, start.work)
        fact = self.world.end(claimed.item)
        self.world.facts.remove(fact)
        assert self.queue.settle(msgspec.structs.replace(fact, token=claimed.token), claimed.token)
        return True

    def run(self, limit: int = 80) -> dict[str, str]:
        for _ in range(limit):
            saved = self.tick()
            if saved.state.sprint.phase == "ended":
                break
            if not self.drain() and not self.work() and not saved.changed:
                break
        state = self.ledger.state(self.sprint)
        return {i: str(t.status) for i, t in state.tasks.items()}

    def run_until_an_agent_works(self) -> str:
        """Start an agent that stays silent and return its item."""
        self.tick()
        self.drain()
        self.tick()
        claimed = self.queue.claim(("implement",), cap=9)
        assert claimed is not None
        from caloron.store import queue as store

        with self.ledger.db.transaction("test") as connection:
            store.begin_attempt(connection, claimed.item, claimed.token, 60_000)
        return claimed.item

    def make_silent(self, minutes: int) -> None:
        with self.ledger.db.transaction("test") as connection:
            connection.execute("UPDATE clock_offset SET ms = ms + ?", (minutes * 60_000,))


@pytest.fixture
def sprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MiniSprint]:
    monkeypatch.setenv("CALORON_KV_DIR", str(tmp_path / "kv"))
    made = MiniSprint(tmp_path)
    yield made
    made.ledger.close()


def test_with_every_stage_the_sprint_is_done(sprint: MiniSprint) -> None:
    assert sprint.run() == {"a": "Done", "b": "Done"}
    assert sprint.ledger.state(sprint.sprint).sprint.phase == "ended"
    assert b'"Done"' in kv_path(sprint.sprint).read_bytes()
    changes = [s.changed for s in sprint.saved]
    assert all(changes[:-1])


def _stages() -> list[str]:
    text = composition(GRAPH)
    assert text is not None
    return [node.id for _, node in walk(parse_graph(text).root) if isinstance(node, Stage)]


def test_every_stage_of_the_tick_is_replaced_by_a_test_here() -> None:
    source = Path(__file__).read_text("utf-8")
    assert len(_stages()) == 11
    assert {name for name in _stages() if f'"{name}"' not in source} == set()


def _deleted(node: Json, name: str) -> Json:
    """Return the graph without a stage; elsewhere than in a list, the value passes through."""
    if isinstance(node, dict):
        if node.get("op") == "Stage" and node["id"] == name:
            return {"op": "Sequential", "stages": []}
        if node.get("op") == "Sequential":
            kept = [stage for stage in node["stages"] if stage.get("id") != name]
            return {"op": "Sequential", "stages": [_deleted(stage, name) for stage in kept]}
        return {key: _deleted(value, name) for key, value in node.items()}
    return node


@pytest.fixture
def ship(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes | None], None]]:
    """Replace the text of the shipped graph."""
    tick_graph.cache_clear()
    yield lambda text: monkeypatch.setattr(tick_module, "composition", lambda _name: text)
    tick_graph.cache_clear()


@pytest.mark.parametrize("stage", _stages())
def test_a_stage_that_is_deleted_from_the_shipped_graph_stops_every_tick(
    stage: str, sprint: MiniSprint, ship: Callable[[bytes | None], None]
) -> None:
    text = composition(GRAPH)
    assert text is not None
    ship(json.dumps(_deleted(json.loads(text), stage)).encode())
    with pytest.raises(CaloronError, match="cannot run"):
        sprint.tick()
    assert sprint.ledger.state(sprint.sprint).tasks == {}


@pytest.mark.parametrize("text", [b"{}", b"", b"{", None])
def test_an_invalid_shipped_graph_is_named(
    text: bytes | None, sprint: MiniSprint, ship: Callable[[bytes | None], None]
) -> None:
    ship(text)
    with pytest.raises(CaloronError, match="the graph sprint_tick_stateful"):
        sprint.tick()


def test_without_load_tick_state_the_tick_decides_on_a_stale_state(
    sprint: MiniSprint,
) -> None:
    """The replacement passes on the state that it read first."""
    from caloron.stages.tick import load_tick_state

    kept: list[Json] = []
    context = TickContext(ledger=sprint.ledger, clock=sprint.clock, limits=Limits())

    def first_state(inputs: Json) -> Json:
        kept.append(kept[0] if kept else load_tick_state(inputs, context))
        return kept[-1]

    sprint.instead["load_tick_state"] = first_state
    sprint.tick()
    with pytest.raises(StaleTick, match="changed by another tick"):
        sprint.tick()


@pytest.mark.parametrize(
    ("stage", "instead"),
    [
        # The opened issues stay unseen.
        ("github_poll_events", lambda inputs: {"events": [], "polled_at": ""}),
        # The snapshots do not reach the decision.
        (
            "project_poll_to_eval",
            lambda inputs: {**inputs, "events": [], "stall_threshold_m": 20},
        ),
        # No decision is ever executed.
        ("execute_actions", lambda inputs: {"actions_taken": [], "errors": [], "rows": []}),
        # Decisions do not reach the stage that makes rows of them.
        (
            "project_all_to_execute",
            lambda inputs: {**inputs, "dag_actions": [], "supervisor_actions": []},
        ),
    ],
)
def test_without_a_stage_on_the_way_from_events_to_rows_no_task_gets_its_issue(
    sprint: MiniSprint, stage: str, instead: Callable[[Json], Json]
) -> None:
    sprint.instead[stage] = instead
    assert sprint.run() == {"a": "Ready", "b": "Pending"}
    assert sprint.ledger.state(sprint.sprint).tasks["a"].links.issue is None


@pytest.mark.parametrize(
    ("stage", "instead"),
    [
        # Without a decision there is no plan.
        ("dag_evaluate", lambda inputs: {"state": inputs["state"], "actions": [], "moves": []}),
        # The saved state is not the decision.
        (
            "build_tick_output",
            lambda inputs: {"state": inputs["state"], "now": inputs["now"], "moves": [], "rows": [],
                           "loaded": inputs["loaded"], "actions_taken": [], "errors": [],
                           "polled_at": "", "interventions": {}},
        ),
        # No state is saved.
        (
            "save_tick_state",
            lambda inputs: {"state": inputs["tick_result"]["state"], "moves": [], "changed": False,
                           "actions_taken": [], "errors": [], "persisted_path": ""},
        ),
    ],
)  # fmt: skip
def test_without_a_stage_that_decides_or_keeps_there_is_no_plan(
    sprint: MiniSprint, stage: str, instead: Callable[[Json], Json]
) -> None:
    sprint.instead[stage] = instead
    assert sprint.run() == {}
    assert sprint.journal.due() == []


def test_with_every_stage_a_silent_agent_is_probed(sprint: MiniSprint) -> None:
    sprint.run_until_an_agent_works()
    sprint.make_silent(21)
    saved = sprint.tick()
    assert [t for t in saved.actions_taken if t.startswith("probe:a")] == [
        "probe:a (silent for 21 min)"
    ]
    assert {e.kind for e in _all_due(sprint)} >= {"probe"}


def _all_due(sprint: MiniSprint) -> list[Any]:
    entries = []
    while due := sprint.journal.due():
        for entry in due:
            entries.append(entry)
            sprint.journal.intend(entry)
            sprint.journal.record(entry, [])
    return entries


@pytest.mark.parametrize(
    ("stage", "instead"),
    [
        ("check_agent_health", lambda inputs: {"results": []}),
        (
            "project_health_to_intervention",
            lambda inputs: {**inputs, "results": [], "state": inputs["eval"]["state"]},
        ),
        (
            "decide_intervention",
            lambda inputs: {"actions": [], "updated_interventions": {}, "state": inputs["state"]},
        ),
        (
            "project_all_to_execute",
            lambda inputs: {
                **inputs, "dag_actions": inputs["eval"]["actions"], "supervisor_actions": []
            },
        ),
    ],
)  # fmt: skip
def test_without_a_stage_of_the_supervisor_a_silent_agent_is_never_probed(
    sprint: MiniSprint, stage: str, instead: Callable[[Json], Json]
) -> None:
    sprint.run_until_an_agent_works()
    sprint.make_silent(21)
    sprint.instead[stage] = instead
    sprint.tick()
    assert {e.kind for e in _all_due(sprint)} == {"label", "progress"}


def test_an_idle_tick_writes_nothing(sprint: MiniSprint) -> None:
    sprint.run()
    before = [tuple(r) for r in sprint.ledger.db.rows("SELECT * FROM events")]
    file = kv_path(sprint.sprint).stat()
    saved = sprint.tick()
    assert not saved.changed
    assert [tuple(r) for r in sprint.ledger.db.rows("SELECT * FROM events")] == before
    assert kv_path(sprint.sprint).stat().st_mtime_ns == file.st_mtime_ns


def test_no_stage_of_the_tick_calls_another_stage_or_the_engine() -> None:
    for name in _stages():
        source = Path(getfile(stage_function(name))).read_text("utf-8")
        names = set(re.findall(r"caloron\.stages\.(\w+)", source))
        assert names <= {"forge_access", "ledger_access", "values"}, name
        assert "caloron.engine" not in source, name


def test_values_of_a_tick_are_the_same_when_they_are_written_between_its_stages(
    sprint: MiniSprint,
) -> None:
    """Stages of one process pass values on; another process would receive text."""

    def by_text(name: str) -> Callable[[Json], Json]:
        execute = stage_function(name)
        return lambda inputs: json.loads(Value(execute(json.loads(Value(inputs).text))).text)

    for name in _stages():
        if name not in ("load_tick_state", "save_tick_state"):
            sprint.instead[name] = by_text(name)
    assert sprint.run() == {"a": "Done", "b": "Done"}
    assert list(decode_state(json.loads(Value(_state(sprint)).text)).tasks) == ["a", "b"]


def _state(sprint: MiniSprint) -> Json:
    from caloron.stages.values import in_process_state

    return in_process_state(sprint.ledger.state(sprint.sprint))


def test_in_one_process_the_state_is_not_written_between_two_stages(
    sprint: MiniSprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing the state would take most of the time of a tick."""

    def refuse(state: Any) -> Json:
        raise AssertionError("a stage asked for the state as JSON")

    monkeypatch.setattr("caloron.stages.values.state_json", refuse)
    assert sprint.run() == {"a": "Done", "b": "Done"}
