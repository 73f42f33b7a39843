"""Deleting any step from the loop breaks a sprint, for the reason that this step owns.

A whole small sprint runs through the real `run_tick` on a real ledger; forge and agents are the
ones of `World`. Each stage in turn is replaced by one that passes on what it got.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from caloron.domain.evaluate import Decision
from caloron.domain.sprint import Sprint
from caloron.domain.supervise import Limits
from caloron.engine import tick as tick_module
from caloron.engine.tick import run_tick
from caloron.ledger.journal import Journal
from caloron.ledger.ledger import Ledger
from caloron.ledger.projections import kv_path
from caloron.ledger.work import WorkQueue
from caloron.stages.context import TickContext
from caloron.stages.sprint import EvaluateInput, ExecuteInput, InterventionInput, Saved, TickResult
from tests.unit.domain.world import World, new_state, planned

PLAN = (planned("a"), planned("b", "a"))


class FixedClock:
    def __init__(self) -> None:
        self.time = 10_000.0

    def now(self) -> float:
        return self.time


class MiniSprint:
    """The loop of the engine, one thing after the other, with a forge in memory."""

    def __init__(self, path: Path) -> None:
        self.ledger = Ledger(path)
        # What is asked here is what the loop decides, not how durable it is.
        self.ledger.db.rows("PRAGMA synchronous = OFF")
        given = Sprint(id="shop", number=0, goal="a shop", given_plan=PLAN)
        self.id = self.ledger.create_sprint(given, {}).id
        self.world = World(new_state(*PLAN))
        self.clock = FixedClock()
        self.journal = Journal(self.ledger, self.id)
        self.queue = WorkQueue(self.ledger, self.id, holder="test", lease_ms=60_000)
        self.saved: list[Saved] = []

    def tick(self) -> Saved:
        self.world.poll()
        self.ledger.tell(self.id, self.world.news)
        self.world.news.clear()
        self.clock.time += 1
        context = TickContext(
            ledger=self.ledger,
            clock=self.clock,
            limits=Limits(stall_s=1200, timeout_s=10**9, grace_s=300),
        )
        saved = run_tick(context, self.id)
        self.saved.append(saved)
        return saved

    def drain(self) -> bool:
        """Carry out the effects that the journal holds; whether there were any."""
        due = self.journal.due()
        for entry in due:
            self.journal.intend(entry)
            facts = self.world._do(entry.effect)
            self.journal.record(entry, facts)
        return bool(due)

    def work(self) -> bool:
        """Let one agent do well; whether there was one."""
        roles = ("implement", "review", "fix", "resolve", "check", "verify")
        claimed = self.queue.claim(roles, cap=9)
        if claimed is None:
            return False
        start = claimed.start
        self.world.queue[claimed.item] = (start.task, start.work)
        fact = self.world.end(claimed.item)
        self.world.news.remove(fact)
        assert self.queue.settle(msgspec.structs.replace(fact, token=claimed.token), claimed.token)
        return True

    def run(self, limit: int = 80) -> dict[str, str]:
        for _ in range(limit):
            saved = self.tick()
            if saved.state.sprint.phase == "ended":
                break
            if not self.drain() and not self.work() and not saved.changed:
                break
        state = self.ledger.state(self.id)
        return {i: str(t.status) for i, t in state.tasks.items()}

    def run_until_an_agent_works(self) -> str:
        """The item of an agent that was started and has said nothing since."""
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
    made = MiniSprint(tmp_path / "ledger.db")
    yield made
    made.ledger.close()


def without(monkeypatch: pytest.MonkeyPatch, stage: str, instead: Callable[..., Any]) -> None:
    assert callable(getattr(tick_module, stage))
    monkeypatch.setattr(tick_module, stage, instead)


def unchanged(given: EvaluateInput) -> Decision:
    return Decision(given.state, (), ())


def test_with_every_stage_the_sprint_is_done(sprint: MiniSprint) -> None:
    assert sprint.run() == {"a": "Done", "b": "Done"}
    assert sprint.ledger.state(sprint.id).sprint.phase == "ended"
    assert b'"Done"' in kv_path(sprint.id).read_bytes()
    changes = [s.changed for s in sprint.saved]
    assert all(changes[:-1])


def test_every_stage_of_the_tick_is_deleted_by_a_test_here() -> None:
    stages = {
        name
        for name, value in vars(tick_module).items()
        if callable(value) and getattr(value, "__module__", "").startswith("caloron.stages.")
        and not isinstance(value, type)
    }  # fmt: skip
    source = Path(__file__).read_text("utf-8")
    assert {name for name in stages if f'"{name}"' not in source} == set()


def test_without_load_tick_state_the_loop_decides_on_a_state_that_is_over(
    sprint: MiniSprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it passes on is the state of its first look."""
    from caloron.stages.sprint import load_tick_state as real

    kept: list[Any] = []

    def first_look(context: TickContext, id: str) -> Any:
        kept.append(kept[0] if kept else real(context, id))
        return kept[-1]

    without(monkeypatch, "load_tick_state", first_look)
    sprint.tick()
    with pytest.raises(Exception, match="changed by another tick"):
        sprint.tick()


def test_without_github_poll_events_nobody_sees_the_issues(
    sprint: MiniSprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "github_poll_events", lambda tick: ())
    assert sprint.run() == {"a": "Ready", "b": "Pending"}
    assert sprint.ledger.state(sprint.id).tasks["a"].issue is None


def test_without_project_poll_to_eval_what_was_seen_does_not_reach_the_decision(
    sprint: MiniSprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(
        monkeypatch,
        "project_poll_to_eval",
        lambda tick, facts: EvaluateInput(state=tick.state, facts=(), now=tick.now),
    )
    assert sprint.run() == {"a": "Ready", "b": "Pending"}


def test_without_dag_evaluate_there_is_not_even_a_plan(
    sprint: MiniSprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "dag_evaluate", unchanged)
    assert sprint.run() == {}


def test_with_every_stage_a_silent_agent_is_probed(sprint: MiniSprint) -> None:
    sprint.run_until_an_agent_works()
    sprint.make_silent(21)
    saved = sprint.tick()
    assert [t for t in saved.actions_taken if t.startswith("probe:a")] == [
        "probe:a (silent for 21 min)"
    ]
    assert {e.kind for e in _all_due(sprint)} >= {"probe"}


def _all_due(sprint: MiniSprint) -> list[Any]:
    found = []
    while due := sprint.journal.due():
        for entry in due:
            found.append(entry)
            sprint.journal.intend(entry)
            sprint.journal.record(entry, [])
    return found


@pytest.mark.parametrize(
    ("stage", "instead"),
    [
        ("check_agent_health", lambda tick: ()),
        (
            "project_health_to_intervention",
            lambda tick, evaluated, results: InterventionInput(
                state=evaluated.state, results=(), limits=tick.limits, now=tick.now
            ),
        ),
        (
            "decide_intervention",
            lambda given: (Decision(given.state, (), ()), ()),
        ),
        (
            "project_all_to_execute",
            lambda evaluated, supervised: ExecuteInput(
                dag_actions=evaluated.actions, supervisor_actions=()
            ),
        ),
    ],
)
def test_without_a_stage_of_the_supervisor_a_silent_agent_is_never_probed(
    sprint: MiniSprint, monkeypatch: pytest.MonkeyPatch, stage: str, instead: Callable[..., Any]
) -> None:
    sprint.run_until_an_agent_works()
    sprint.make_silent(21)
    without(monkeypatch, stage, instead)
    sprint.tick()
    assert {e.kind for e in _all_due(sprint)} == {"label", "progress"}


def test_without_execute_actions_nothing_that_was_decided_is_ever_done(
    sprint: MiniSprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "execute_actions", lambda given: ((), ()))
    assert sprint.run() == {"a": "Ready", "b": "Pending"}
    assert sprint.journal.due() == []


def test_without_build_tick_output_the_decision_is_not_what_is_saved(
    sprint: MiniSprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(
        monkeypatch,
        "build_tick_output",
        lambda tick, *_: TickResult(
            state=tick.state, rows=(), actions_taken=(), moves=(), now=tick.now
        ),
    )
    assert sprint.run() == {}


def test_without_save_tick_state_nothing_is_remembered(
    sprint: MiniSprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(
        monkeypatch,
        "save_tick_state",
        lambda context, tick, result: Saved(
            state=result.state, moves=result.moves, actions_taken=(), changed=False
        ),
    )
    assert sprint.run() == {}
    assert sprint.journal.due() == []
    assert not kv_path(sprint.id).exists()


def test_an_idle_tick_writes_nothing(sprint: MiniSprint) -> None:
    sprint.run()
    before = [tuple(r) for r in sprint.ledger.db.rows("SELECT * FROM events")]
    file = kv_path(sprint.id).stat()
    saved = sprint.tick()
    assert not saved.changed
    assert [tuple(r) for r in sprint.ledger.db.rows("SELECT * FROM events")] == before
    assert kv_path(sprint.id).stat().st_mtime_ns == file.st_mtime_ns
