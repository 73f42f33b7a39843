"""A ledger with one running sprint of two tasks, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from caloron.domain.model.facts import Fact
from caloron.domain.model.sprint import Planning, Sprint, SprintSettings
from caloron.domain.rules.evaluate import evaluate
from caloron.domain.rules.evaluation import Decision
from caloron.ledger.journal import Journal
from caloron.ledger.ledger import Ledger, Loaded, TickCommit
from caloron.testing import planned

PLAN = (planned("a"), planned("b", "a"))


class Book:
    """A ledger and the id of its sprint."""

    def __init__(self, path: Path) -> None:
        self.ledger = Ledger(path)
        # No machine crashes here, so nothing needs to wait for the disk.
        self.ledger.db.rows("PRAGMA synchronous = OFF")
        given = Sprint(
            id="shop",
            number=0,
            goal="a shop",
            planning=Planning(given_plan=PLAN),
            settings=SprintSettings(created_at=1.0),
        )
        self.sprint = self.ledger.create_sprint(given, {}).id
        self.journal = Journal(self.ledger, self.sprint)

    def load(self) -> Loaded:
        return self.ledger.load(self.sprint)

    def tell(self, *facts: Fact) -> int:
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

    def count(self, table: str) -> int:
        row = self.ledger.db.row(f"SELECT count(*) FROM {table}")
        assert row is not None
        return int(row[0])

    def events(self, type: str) -> int:
        row = self.ledger.db.row("SELECT count(*) FROM events WHERE type = ?", (type,))
        assert row is not None
        return int(row[0])

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
