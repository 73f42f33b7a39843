"""Two programs on one file: agent-state 0.3 keeps working, and Caloron loses no data to it.

The statements are those of agent-state, in its order and without a transaction, taken from the
description of its behaviour and from its transcript.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from caloron.agentstate.instance import AgentInstance
from caloron.errors import InUse, PreconditionFailed
from tests.integration.agentstate.conftest import DATA, agent_state, foreign, shift_clock

TEN_MINUTES = 600_000


class AgentState:
    """agent-state 0.3 on the same file."""

    def __init__(self, where: Path) -> None:
        self.db = foreign(where)

    def enqueue(self, item: str, kind: str = "review", status: str = "pending") -> None:
        now = int(time.time() * 1000)
        row = (item, kind, "{}", status, None, now, now, None)
        self.db.execute("INSERT INTO work_items VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        payload = json.dumps({"kind": kind, "status": status})
        self._event(now, "work_item_created", None, item, payload)

    def read(self, item: str) -> sqlite3.Row:
        row = self.db.execute("SELECT * FROM work_items WHERE id = ?", (item,)).fetchone()
        assert isinstance(row, sqlite3.Row)
        return row

    def claim(self, item: str, owner: str, read: sqlite3.Row | None = None) -> sqlite3.Row:
        """Claim an item; `read` is an outdated row that was read before another claim."""
        row = read or self.read(item)
        assert row["status"] in ("pending", "in_flight")
        now = int(time.time() * 1000)
        self.db.execute(
            "UPDATE work_items SET status = 'in_flight', owner_agent = ?, updated_at = ?"
            " WHERE id = ?",
            (owner, now, item),
        )
        self._event(now, "work_item_claimed", owner, item, '{"status":"in_flight"}')
        return self.read(item)

    def resolve(self, item: str, status: str, notes: str | None = None) -> sqlite3.Row:
        row = self.read(item)
        assert row["status"] in ("pending", "in_flight", "waiting_human")
        now = int(time.time() * 1000)
        self.db.execute(
            "UPDATE work_items SET status = ?, notes = COALESCE(?, notes), updated_at = ?"
            " WHERE id = ?",
            (status, notes, now, item),
        )
        payload = json.dumps({"status": status, "notes": notes})
        self._event(now, "work_item_resolved", row["owner_agent"], item, payload)
        return self.read(item)

    def annotate(self, item: str, patch: dict, read: sqlite3.Row | None = None) -> sqlite3.Row:
        row = read or self.read(item)
        notes = json.dumps((json.loads(row["notes"]) if row["notes"] else {}) | patch)
        now = int(time.time() * 1000)
        self.db.execute(
            "UPDATE work_items SET notes = ?, updated_at = ? WHERE id = ?", (notes, now, item)
        )
        self._event(now, "work_item_annotated", row["owner_agent"], item, "{}")
        return self.read(item)

    def replay(self, threshold_ms: int) -> list[str]:
        before = int(time.time() * 1000) - threshold_ms
        rows = self.db.execute(
            "SELECT id FROM work_items WHERE status = 'pending' OR"
            " (status = 'in_flight' AND updated_at < ?) ORDER BY created_at",
            (before,),
        )
        return [row["id"] for row in rows]

    def _event(self, ts: int, type: str, actor: str | None, item: str, payload: str) -> None:
        self.db.execute(
            "INSERT INTO events (ts, type, actor, work_item_id, payload) VALUES (?, ?, ?, ?, ?)",
            (ts, type, actor, item, payload),
        )


@pytest.fixture
def other_program(home: AgentInstance, where: Path) -> AgentState:
    return AgentState(where)


def _schema(path: Path) -> dict[tuple[str, str], str]:
    connection = sqlite3.connect(path)
    rows = connection.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
    )
    return {(kind, name): "".join((sql or "").split()) for kind, name, sql in rows}


def test_the_schema_equals_that_of_agent_state_except_for_objects_named_caloron(
    home: AgentInstance, where: Path
) -> None:
    original = _schema(DATA / "state.sqlite")
    schema = _schema(where / "state.sqlite")
    assert {key: schema[key] for key in original} == original
    assert all(name.startswith("caloron_") for _, name in schema.keys() - original.keys())
    assert sum(name.startswith("idx_") for _, name in schema) == 5
    versions = home.db.rows("SELECT version FROM schema_migrations")
    assert [row["version"] for row in versions] == ["0001"]


def test_the_statements_of_agent_state_work_on_our_file(
    home: AgentInstance, other_program: AgentState
) -> None:
    home.work_items.enqueue("m1", "review", {"pr": 1}, notes="first")
    assert other_program.replay(0) == ["m1"]
    assert other_program.claim("m1", "forge")["owner_agent"] == "forge"
    assert other_program.claim("m1", "other")["owner_agent"] == "other"
    assert other_program.resolve("m1", "failed", "broke")["notes"] == "broke"
    assert home.work_items.earlier_notes("m1")[0][1] == "first"
    assert [event.type for event in home.events.of("m1")] == [
        "work_item_created", "work_item_claimed", "work_item_claimed", "work_item_resolved",
    ]  # fmt: skip


def test_an_item_of_agent_state_can_be_claimed(
    home: AgentInstance, other_program: AgentState
) -> None:
    other_program.enqueue("n1")
    claimed = home.work_items.claim_next("forge")
    assert claimed is not None
    assert claimed.item.id == "n1"
    other_program.enqueue("n2", status="waiting_human")
    assert home.work_items.answer("n2", "go").status == "pending"


def test_a_claim_of_agent_state_protects_the_item_for_ten_minutes(
    home: AgentInstance, other_program: AgentState
) -> None:
    other_program.enqueue("a")
    other_program.claim("a", "theirs")
    with pytest.raises(InUse, match="held by theirs"):
        home.work_items.claim("a", "forge")
    assert home.work_items.replay() == []
    shift_clock(home, TEN_MINUTES - 1000)
    assert home.work_items.claim_next("forge") is None
    shift_clock(home, 2000)
    assert [entry.why for entry in home.work_items.replay()] == ["stale"]
    assert home.work_items.claim("a", "forge").lease.attempt == 2


def test_our_fenced_write_is_refused_after_agent_state_ended_the_item(
    home: AgentInstance, other_program: AgentState
) -> None:
    home.work_items.enqueue("a", "review", {})
    claimed = home.work_items.claim("a", "forge")
    other_program.resolve("a", "cancelled", "not wanted")
    with pytest.raises(InUse):
        home.work_items.renew("a", claimed.lease.token)
    with pytest.raises(PreconditionFailed, match="cancelled"):
        home.work_items.resolve("a", "done", token=claimed.lease.token)


def test_a_late_claim_of_agent_state_does_not_undo_our_end(
    home: AgentInstance, other_program: AgentState
) -> None:
    home.work_items.enqueue("a", "review", {})
    outdated = other_program.read("a")
    home.work_items.resolve("a", "done", notes="merged")
    with pytest.raises(sqlite3.IntegrityError, match="has ended"):
        other_program.claim("a", "other", outdated)
    assert home.work_items.get("a").status == "done"


def test_our_annotation_survives_an_older_one_of_agent_state(
    home: AgentInstance, other_program: AgentState
) -> None:
    home.work_items.enqueue("a", "review", {})
    home.work_items.annotate("a", {"old": 1})
    outdated = other_program.read("a")
    notes = {"session_id": "s1", "nested": {"x": [1, None]}, "yes": True, "no": False, "u": "ü"}
    home.work_items.annotate("a", notes)
    other_program.annotate("a", {"host": "grove", "old": 2}, outdated)
    assert json.loads(home.work_items.get("a").notes or "") == notes | {"old": 2, "host": "grove"}


def test_every_query_of_agent_state_works_on_our_file(tmp_path: Path) -> None:
    shutil.copy(DATA / "state.sqlite", tmp_path / "state.sqlite")
    assert agent_state(tmp_path, "errands", "next", "--owner", "forge").code == 0
    other_program = foreign(tmp_path)
    for statement in (
        "SELECT * FROM work_items WHERE kind = 'review' ORDER BY updated_at DESC LIMIT 200",
        "SELECT * FROM events ORDER BY ts DESC, id DESC LIMIT 50",
        "SELECT * FROM events WHERE ts >= 0 ORDER BY ts ASC, id ASC",
        "SELECT * FROM events WHERE work_item_id = 'q0' ORDER BY ts, id",
    ):
        assert other_program.execute(statement).fetchall()
    for status in ("pending", "in_flight", "waiting_human", "done", "failed", "cancelled"):
        other_program.execute(
            "INSERT INTO work_items VALUES (?, 'x', '{}', ?, NULL, 1, 1, NULL)", (status, status)
        )
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        other_program.execute(
            "INSERT INTO work_items VALUES ('z', 'x', '{}', 'nope', NULL, 1, 1, NULL)"
        )
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
        other_program.execute(
            "INSERT INTO events (ts, type, work_item_id, payload) VALUES (1, 'x', 'ghost', '{}')"
        )
