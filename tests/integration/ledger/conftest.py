"""A ledger with one running sprint of two tasks, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from caloron.domain.model.effects import Action
from caloron.domain.model.facts import Fact
from caloron.domain.model.feedback import Feedback
from caloron.domain.model.sprint import Planning, Sprint, SprintSettings, State
from caloron.domain.model.status import Step
from caloron.domain.rules.evaluate import evaluate
from caloron.domain.rules.evaluation import Decision
from caloron.ledger.journal import Journal
from caloron.ledger.ledger import Ledger, Loaded, TickCommit
from caloron.store import queue
from caloron.testing import planned

T = TypeVar("T")
LEASE_MS = 30_000
PLAN = (planned("a"), planned("b", "a"))


class Book:
    """A ledger and the id of its sprint."""

    def __init__(self, path: Path) -> None:
        self.ledger = Ledger(path)
        # These tests do not crash the machine, so fsync is not needed.
        self.ledger.db.rows("PRAGMA synchronous = OFF")
        sprint = Sprint(
            id="shop",
            number=0,
            goal="a shop",
            planning=Planning(given_plan=PLAN),
            settings=SprintSettings(created_at=1.0),
        )
        self.sprint = self.ledger.create_sprint(sprint, {}).id
        self.journal = Journal(self.ledger, self.sprint)

    def do(self, act: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call a function of the queue in a transaction of its own."""
        with self.ledger.db.transaction("test") as connection:
            return act(connection, *args, **options)

    def read(self, act: Callable[..., T], *args: Any) -> T:
        """Call a function that reads, in a snapshot."""
        with self.ledger.db.snapshot() as connection:
            return act(connection, *args)

    def load(self) -> Loaded:
        return self.ledger.load(self.sprint)

    def append_facts(self, *facts: Fact) -> int:
        return self.ledger.append_facts(self.sprint, facts)

    def decide(self, loaded: Loaded, now: float = 100.0) -> Decision:
        return evaluate(loaded.state, loaded.facts, now)

    def commit(self, loaded: Loaded, decision: Decision) -> None:
        self.ledger.commit_tick(
            loaded,
            TickCommit(state=decision.state, actions=decision.actions, moves=decision.moves),
        )

    def tick(self) -> Decision:
        loaded = self.load()
        decision = self.decide(loaded)
        self.commit(loaded, decision)
        return decision

    def commit_state(self, state: State, *actions: Action) -> None:
        """Commit a state and actions as a tick would."""
        self.ledger.commit_tick(self.load(), TickCommit(state=state, actions=actions))

    def finish(
        self,
        *,
        step: Step = Step.DONE,
        reason: str = "",
        feedback: Feedback | None = None,
    ) -> None:
        """End the sprint with its two tasks; the step and the texts are those of task a."""
        if not self.load().state.tasks:
            self.tick()
        state = self.load().state
        a, b = state.tasks["a"], state.tasks["b"]
        log = replace(a.log, feedback=feedback)
        tasks = {
            "a": replace(a, step=step, reason=reason, log=log),
            "b": replace(b, step=Step.DONE),
        }
        sprint = replace(state.sprint, phase="ended", ended_at=101.0)
        self.commit_state(replace(state, sprint=sprint, tasks=tasks))

    def claim(self, item: str, role: str) -> int:
        """Put work into the queue, claim it, and return the token."""
        self.do(queue.enqueue, item, role, "{}")
        claim = self.do(queue.claim, [role], holder="me", lease_ms=LEASE_MS, cap=99)
        assert claim is not None
        return claim.token

    def begin(self, item: str, role: str) -> int:
        """Claim work, start a process for it, and return the token."""
        token = self.claim(item, role)
        self.do(queue.begin_attempt, item, token, LEASE_MS)
        return token

    def end(self, item: str, token: int, **result: Any) -> None:
        self.do(queue.write_result, item, token, {"exit_code": 0} | result)

    def report(self, item: str, **fields: Any) -> None:
        self.do(queue.append_event, "agent_reported", fields, item=item)

    def count(self, table: str) -> int:
        return len(self.ledger.db.rows(f"SELECT 1 FROM {table}"))

    def events(self, type: str) -> int:
        return len(self.ledger.db.rows("SELECT 1 FROM events WHERE type = ?", (type,)))

    def everything(self) -> list[tuple[object, ...]]:
        tables = (
            "sprints", "tasks", "observations", "inbox", "actions", "kv", "events", "work_items",
            "leases",
        )  # fmt: skip
        return [tuple(r) for t in tables for r in self.ledger.db.rows(f"SELECT * FROM {t}")]


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Book]:
    monkeypatch.setenv("CALORON_KV_DIR", str(tmp_path / "kv"))
    made = Book(tmp_path / "ledger.db")
    yield made
    made.ledger.close()
