"""One file, two programs: agent-state 0.3 goes on working on it, and ours loses nothing to it.

The statements here are those that agent-state makes, in its order and without a transaction, as the
description of its behaviour and its transcript give them.
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
        found = self.db.execute("SELECT * FROM work_items WHERE id = ?", (item,)).fetchone()
        assert isinstance(found, sqlite3.Row)
        return found

    def claim(self, item: str, owner: str, read: sqlite3.Row | None = None) -> sqlite3.Row:
        """`read`: what it had seen before somebody else was faster."""
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
        found = self.db.execute(
            "SELECT id FROM work_items WHERE status = 'pending' OR"
            " (status = 'in_flight' AND updated_at < ?) ORDER BY created_at",
            (before,),
        )
        return [row["id"] for row in found]

    def _event(self, ts: int, type: str, actor: str | None, item: str, payload: str) -> None:
        self.db.execute(
            "INSERT INTO events (ts, type, actor, work_item_id, payload) VALUES (?, ?, ?, ?, ?)",
            (ts, type, actor, item, payload),
        )


@pytest.fixture
def theirs(home: AgentInstance, where: Path) -> AgentState:
    return AgentState(where)


def _schema(path: Path) -> dict[tuple[str, str], str]:
    connection = sqlite3.connect(path)
    found = connection.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
    )
    return {(kind, name): "".join((sql or "").split()) for kind, name, sql in found}


def test_the_tables_and_indices_equal_the_originals_and_all_else_is_named_caloron(
    home: AgentInstance, where: Path
) -> None:
    original = _schema(DATA / "state.sqlite")
    ours = _schema(where / "state.sqlite")
    assert {key: ours[key] for key in original} == original
    assert all(name.startswith("caloron_") for _, name in ours.keys() - original.keys())
    assert sum(name.startswith("idx_") for _, name in ours) == 5
    versions = home.db.rows("SELECT version FROM schema_migrations")
    assert [row["version"] for row in versions] == ["0001"]


def test_a_whole_life_of_an_item_by_their_statements_in_a_file_of_ours(
    home: AgentInstance, theirs: AgentState
) -> None:
    home.work_items.enqueue("m1", "review", {"pr": 1}, notes="first")
    assert theirs.replay(0) == ["m1"]
    assert theirs.claim("m1", "forge")["owner_agent"] == "forge"
    assert theirs.claim("m1", "other")["owner_agent"] == "other"
    assert theirs.resolve("m1", "failed", "broke")["notes"] == "broke"
    assert home.work_items.earlier_notes("m1")[0][1] == "first"
    assert [event.type for event in home.events.of("m1")] == [
        "work_item_created", "work_item_claimed", "work_item_claimed", "work_item_resolved",
    ]  # fmt: skip


def test_an_item_of_agent_state_can_be_claimed(home: AgentInstance, theirs: AgentState) -> None:
    theirs.enqueue("n1")
    held = home.work_items.claim_next("forge")
    assert held is not None
    assert held.item.id == "n1"
    theirs.enqueue("n2", status="waiting_human")
    assert home.work_items.answer("n2", "go").status == "pending"


def test_their_claim_protects_the_item_from_us_for_ten_minutes_after_their_last_sign(
    home: AgentInstance, theirs: AgentState
) -> None:
    theirs.enqueue("a")
    theirs.claim("a", "theirs")
    with pytest.raises(InUse, match="held by theirs"):
        home.work_items.claim("a", "forge")
    assert home.work_items.replay() == []
    shift_clock(home, TEN_MINUTES - 1000)
    assert home.work_items.claim_next("forge") is None
    shift_clock(home, 2000)
    assert [one.why for one in home.work_items.replay()] == ["stale"]
    assert home.work_items.claim("a", "forge").lease.attempt == 2


def test_an_end_by_agent_state_refuses_our_next_fenced_write(
    home: AgentInstance, theirs: AgentState
) -> None:
    home.work_items.enqueue("a", "review", {})
    held = home.work_items.claim("a", "forge")
    theirs.resolve("a", "cancelled", "not wanted")
    with pytest.raises(InUse):
        home.work_items.renew("a", held.lease.token)
    with pytest.raises(PreconditionFailed, match="cancelled"):
        home.work_items.resolve("a", "done", token=held.lease.token)


def test_an_end_of_ours_is_not_undone_by_a_claim_that_they_had_decided_before(
    home: AgentInstance, theirs: AgentState
) -> None:
    home.work_items.enqueue("a", "review", {})
    seen = theirs.read("a")
    home.work_items.resolve("a", "done", notes="merged")
    with pytest.raises(sqlite3.IntegrityError, match="has ended"):
        theirs.claim("a", "other", seen)
    assert home.work_items.get("a").status == "done"


def test_our_annotation_survives_an_older_one_of_agent_state(
    home: AgentInstance, theirs: AgentState
) -> None:
    home.work_items.enqueue("a", "review", {})
    home.work_items.annotate("a", {"old": 1})
    seen = theirs.read("a")
    mine = {"session_id": "s1", "nested": {"x": [1, None]}, "yes": True, "no": False, "u": "ü"}
    home.work_items.annotate("a", mine)
    theirs.annotate("a", {"host": "grove", "old": 2}, seen)
    assert json.loads(home.work_items.get("a").notes or "") == mine | {"old": 2, "host": "grove"}


def test_a_file_that_we_used_serves_every_reading_of_the_original(tmp_path: Path) -> None:
    shutil.copy(DATA / "state.sqlite", tmp_path / "state.sqlite")
    assert agent_state(tmp_path, "errands", "next", "--owner", "forge").code == 0
    theirs = foreign(tmp_path)
    for statement in (
        "SELECT * FROM work_items WHERE kind = 'review' ORDER BY updated_at DESC LIMIT 200",
        "SELECT * FROM events ORDER BY ts DESC, id DESC LIMIT 50",
        "SELECT * FROM events WHERE ts >= 0 ORDER BY ts ASC, id ASC",
        "SELECT * FROM events WHERE work_item_id = 'q0' ORDER BY ts, id",
    ):
        assert theirs.execute(statement).fetchall()
    for status in ("pending", "in_flight", "waiting_human", "done", "failed", "cancelled"):
        theirs.execute(
            "INSERT INTO work_items VALUES (?, 'x', '{}', ?, NULL, 1, 1, NULL)", (status, status)
        )
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        theirs.execute("INSERT INTO work_items VALUES ('z', 'x', '{}', 'nope', NULL, 1, 1, NULL)")
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
        theirs.execute(
            "INSERT INTO events (ts, type, work_item_id, payload) VALUES (1, 'x', 'ghost', '{}')"
        )
