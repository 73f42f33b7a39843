"""The queue of one agent: exclusive claims, leases, answers of people, attempts and events."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from caloron.agentstate.events import ExternalEvent
from caloron.agentstate.instance import AgentInstance
from caloron.errors import CaloronError, InUse, NotFound, StoreError
from tests.integration.agentstate.conftest import shift_clock
from tests.support.claimers import claimed_by_all, fill

TEN_MINUTES = 600_000


def add(home: AgentInstance, *items: str, kind: str = "review", priority: int = 0) -> None:
    for item in items:
        home.work_items.enqueue(item, kind, {}, priority=priority)


def types_of(home: AgentInstance, item: str) -> list[str]:
    return [event.type.removeprefix("work_item_") for event in home.events.of(item)]


def test_sixteen_processes_claim_a_thousand_items_each_exactly_once(tmp_path: Path) -> None:
    # tests/chaos/test_agent_claims.py repeats this with ten thousand items.
    items = fill(tmp_path / "agent", 1000)
    assert claimed_by_all(tmp_path / "agent", 16) == {(item, 1): 1 for item in items}


def test_only_a_work_item_of_the_kinds_is_claimed(home: AgentInstance) -> None:
    add(home, "a")
    add(home, "other kind", kind='naïve "kind"')
    order = [home.work_items.claim_next("forge", kinds=["review"]) for _ in range(2)]
    assert [claimed and claimed.item.id for claimed in order] == ["a", None]
    rest = home.work_items.claim_next("forge", kinds=['naïve "kind"', "x"])
    assert rest is not None
    assert rest.item.id == "other kind"
    assert home.work_items.claim_next("forge") is None


def test_an_expired_lease_lets_another_agent_claim_the_item_and_fences_the_first(
    home: AgentInstance,
) -> None:
    add(home, "a")
    first = home.work_items.claim_next("one", lease_ms=TEN_MINUTES)
    assert first is not None
    home.work_items.renew("a", first.lease.token, lease_ms=2 * TEN_MINUTES)
    shift_clock(home, TEN_MINUTES + 1)
    assert home.work_items.claim_next("two") is None
    shift_clock(home, TEN_MINUTES)
    second = home.work_items.claim_next("two")
    assert second is not None
    assert (second.lease.token, second.lease.attempt) == (2, 2)
    with pytest.raises(InUse, match="lease of a is lost"):
        home.work_items.renew("a", first.lease.token)
    for late in (
        lambda: home.work_items.resolve("a", "done", token=first.lease.token),
        lambda: home.work_items.release("a", token=first.lease.token),
        lambda: home.work_items.park("a", "?", token=first.lease.token),
        lambda: home.work_items.resolve("a", "done", owner="one"),
    ):
        with pytest.raises(InUse):
            late()
    assert home.work_items.resolve("a", "done", token=second.lease.token).status == "done"


def test_an_item_that_was_abandoned_too_often_fails(home: AgentInstance) -> None:
    add(home, "poison", "good")
    for _ in range(2):
        claimed = home.work_items.claim("poison", "forge")
        shift_clock(home, TEN_MINUTES + 1)
    assert claimed.lease.attempt == 2
    next_claim = home.work_items.claim_next("forge", max_attempts=2)
    assert next_claim is not None
    assert next_claim.item.id == "good"
    failed = home.work_items.get("poison")
    assert failed.status == "failed"
    assert "claimed 2 times" in (failed.notes or "")


def test_replay_lists_due_and_abandoned_items_the_oldest_first(
    home: AgentInstance,
) -> None:
    add(home, "stale", "waits")
    home.work_items.enqueue("later", "review", {}, delay_ms=3 * TEN_MINUTES)
    home.work_items.claim("stale", "gone")
    shift_clock(home, TEN_MINUTES + 1)
    replayed = home.work_items.replay()
    assert [(r.item.id, r.why) for r in replayed] == [("stale", "stale"), ("waits", "pending")]
    assert [entry.item.id for entry in home.work_items.replay(owner="gone")] == ["stale"]
    assert [entry.item.id for entry in home.work_items.replay(threshold_ms=2 * TEN_MINUTES)] == [
        "waits"
    ]
    claimed = [home.work_items.claim_next("forge") for _ in range(3)]
    assert claimed[2] is None, "a delayed item was claimed"
    shift_clock(home, 2 * TEN_MINUTES)
    assert [entry.item.id for entry in home.work_items.replay()][-1] == "later"


def test_notes_are_merged_and_earlier_texts_are_kept(home: AgentInstance) -> None:
    home.work_items.enqueue("a", "review", {}, notes="by hand")
    home.work_items.annotate("a", {"session_id": "s1"})
    home.work_items.annotate("a", {"session_id": "s2", "n": None})
    ended = home.work_items.resolve("a", "done", notes="merged")
    assert json.loads(ended.notes or "") == {
        "text": "by hand", "session_id": "s2", "n": None, "resolution": "merged",
    }  # fmt: skip
    earlier = [notes for _, notes in home.work_items.earlier_notes("a")]
    assert earlier == [
        "by hand",
        '{"text":"by hand","session_id":"s1"}',
        '{"text":"by hand","session_id":"s2","n":null}',
    ]


def test_a_second_delivery_is_the_same_work_and_differences_are_recorded(
    home: AgentInstance,
) -> None:
    home.work_items.enqueue("a", "review", '{"pr": 1}')
    same = home.work_items.enqueue("a", "review", '{ "pr":1 }')
    assert (same.inserted, same.differs) == (False, ())
    for _ in range(2):
        other = home.work_items.enqueue("a", "fix", '{"pr":2}')
        assert (other.inserted, other.differs) == (False, ("kind", "payload"))
    assert home.work_items.get("a").payload == '{"pr": 1}'
    assert types_of(home, "a") == ["created", "conflict"]


def test_a_change_and_its_event_share_their_time_and_transaction(home: AgentInstance) -> None:
    add(home, "a")
    claimed = home.work_items.claim("a", "forge")
    assert home.events.of("a")[-1].ts == claimed.item.updated_at
    home.db.rows(
        "CREATE TRIGGER broken BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'x'); END"
    )
    for change in (
        lambda: home.work_items.resolve("a", "done"),
        lambda: home.work_items.annotate("a", {"k": 1}),
        lambda: home.work_items.release("a"),
        lambda: home.work_items.enqueue("b", "review", {}),
    ):
        with pytest.raises(StoreError):
            change()
    assert home.work_items.get("a") == claimed.item
    with pytest.raises(NotFound):
        home.work_items.get("b")


def test_an_external_event_is_copied_once_with_its_own_time(home: AgentInstance) -> None:
    add(home, "a")
    lines = [
        ExternalEvent("shop:1", 10, "attempt_started", {"attempt": 1}, "shop", "a"),
        ExternalEvent("shop:2", 20, "attempt_ended", '{"exit_code":0}', item="not here"),
    ]
    assert home.events.copy(lines) == 2
    later = ExternalEvent("shop:3", 30, "merged", {})
    assert home.events.copy([*lines, later]) == 1
    assert home.events.append("merged", {"n": 2}, key="shop:3") is None
    assert [(e.ts, e.type, e.work_item_id) for e in home.events.since(0)][:3] == [
        (10, "attempt_started", "a"), (20, "attempt_ended", None), (30, "merged", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "call",
    [
        lambda e: e.claim("x", "forge"),
        lambda e: e.resolve("x", "done"),
        lambda e: e.annotate("x", {}),
        lambda e: e.release("x"),
        lambda e: e.renew("x", 1),
        lambda e: e.park("x", "?"),
        lambda e: e.answer("x", "!"),
        lambda e: e.reopen("x"),
        lambda e: e.retry("x"),
        lambda e: e.lease("x"),
        lambda e: e.get("x"),
    ],
)
def test_an_unknown_item_is_reported(home: AgentInstance, call) -> None:
    with pytest.raises(NotFound, match="there is no work item x"):
        call(home.work_items)


def test_a_file_of_another_program_is_refused_and_not_changed(tmp_path: Path) -> None:
    where = tmp_path / "agent"
    where.mkdir()
    with sqlite3.connect(where / "state.sqlite") as connection:
        connection.execute("CREATE TABLE work_items (x)")
    before = (where / "state.sqlite").read_bytes()
    with pytest.raises(CaloronError, match=r"state\.sqlite"):
        AgentInstance(where)
    with sqlite3.connect(where / "state.sqlite") as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master")]
    assert names == ["work_items"]
    assert before[:16] == (where / "state.sqlite").read_bytes()[:16]


@pytest.mark.parametrize(
    ("first", "second", "differs"),
    [
        ('{"a":1}', '{"a":true}', True),
        ('{"a":[0]}', '{"a":[false]}', True),
        ('{"a":1,"b":2}', '{"b":2, "a":1.0}', False),
        ('{"a":[1,2]}', '{"a":[2,1]}', True),
        ('{"a":null}', "{}", True),
    ],
)
def test_a_delivery_differs_if_its_json_differs(home, first, second, differs) -> None:
    home.work_items.enqueue("a", "review", first)
    assert home.work_items.enqueue("a", "review", second).differs == (
        ("payload",) if differs else ()
    )


def test_the_key_of_a_conflict_does_not_grow_with_the_payload(home: AgentInstance) -> None:
    home.work_items.enqueue("a", "review", {})
    for _ in range(2):
        home.work_items.enqueue("a", "review", {"text": "x" * 20_000})
    assert types_of(home, "a").count("conflict") == 1
    (longest,) = home.db.rows("SELECT max(length(key)) FROM caloron_event_keys")[0]
    assert longest < 200
