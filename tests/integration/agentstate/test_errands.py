"""The queue of one agent: exclusive claims, leases, people, attempts, and a diary that agrees."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from caloron.agentstate.diary import Line
from caloron.agentstate.home import AgentHome
from caloron.errors import CaloronError, HeldByAnother, NotFound, PreconditionFailed, StoreError
from tests.integration.agentstate.conftest import shift_clock
from tests.support.claimers import claimed_by_all, fill

TEN_MINUTES = 600_000


def add(home: AgentHome, *items: str, kind: str = "review", priority: int = 0) -> None:
    for item in items:
        home.errands.enqueue(item, kind, {}, priority=priority)


def types_of(home: AgentHome, item: str) -> list[str]:
    return [event.type.removeprefix("work_item_") for event in home.diary.of(item)]


def test_sixteen_processes_claim_a_thousand_items_each_exactly_once(tmp_path: Path) -> None:
    # Ten thousand: tests/chaos/test_agent_claims.py.
    items = fill(tmp_path / "agent", 1000)
    assert claimed_by_all(tmp_path / "agent", 16) == {(item, 1): 1 for item in items}


def test_what_is_held_is_refused_to_everybody_and_the_holder_is_named(home: AgentHome) -> None:
    add(home, "a")
    home.errands.claim("a", "forge")
    for owner in ("other", "forge"):
        with pytest.raises(HeldByAnother, match=r"a is held by forge for (600|5\d\d) s more"):
            home.errands.claim("a", owner)
    assert home.errands.get("a").owner_agent == "forge"
    assert types_of(home, "a") == ["created", "claimed"]


def test_the_next_one_is_the_most_urgent_then_the_oldest_of_the_kinds(home: AgentHome) -> None:
    add(home, "old")
    add(home, "urgent", priority=5)
    add(home, "other kind", kind='naïve "kind"', priority=9)
    order = [home.errands.claim_next("forge", kinds=["review"]) for _ in range(3)]
    assert [held and held.errand.id for held in order] == ["urgent", "old", None]
    rest = home.errands.claim_next("forge", kinds=['naïve "kind"', "x"])
    assert rest is not None
    assert rest.errand.id == "other kind"
    assert home.errands.claim_next("forge") is None


def test_what_may_not_begin_yet_is_not_the_next_one(home: AgentHome) -> None:
    home.errands.enqueue("later", "review", {}, delay_ms=TEN_MINUTES)
    assert home.errands.claim_next("forge") is None
    shift_clock(home, TEN_MINUTES + 1)
    assert home.errands.claim_next("forge") is not None


def test_a_lease_that_is_over_lets_another_take_the_item_and_fences_the_first(
    home: AgentHome,
) -> None:
    add(home, "a")
    first = home.errands.claim_next("one", lease_ms=TEN_MINUTES)
    assert first is not None
    home.errands.renew("a", first.lease.token, lease_ms=2 * TEN_MINUTES)
    shift_clock(home, TEN_MINUTES + 1)
    assert home.errands.claim_next("two") is None
    shift_clock(home, TEN_MINUTES)
    second = home.errands.claim_next("two")
    assert second is not None
    assert (second.lease.token, second.lease.attempt) == (2, 2)
    with pytest.raises(HeldByAnother, match="lease of a is lost"):
        home.errands.renew("a", first.lease.token)
    for late in (
        lambda: home.errands.resolve("a", "done", token=first.lease.token),
        lambda: home.errands.release("a", token=first.lease.token),
        lambda: home.errands.park("a", "?", token=first.lease.token),
        lambda: home.errands.resolve("a", "done", owner="one"),
    ):
        with pytest.raises(HeldByAnother):
            late()
    assert home.errands.resolve("a", "done", token=second.lease.token).status == "done"


def test_what_is_released_waits_again_and_its_old_token_is_worth_nothing(home: AgentHome) -> None:
    add(home, "a")
    held = home.errands.claim("a", "forge")
    assert home.errands.release("a", token=held.lease.token, reason="wrong machine").status == (
        "pending"
    )
    with pytest.raises(HeldByAnother):
        home.errands.renew("a", held.lease.token)
    assert home.errands.claim("a", "other").lease.attempt == 2
    assert types_of(home, "a") == ["created", "claimed", "released", "claimed"]


def test_a_person_is_asked_answers_and_the_agent_goes_on(home: AgentHome) -> None:
    home.errands.enqueue("a", "release", {}, notes="careful")
    held = home.errands.claim("a", "forge")
    home.errands.park("a", "May I push?", token=held.lease.token)
    with pytest.raises(PreconditionFailed, match="waiting_human and cannot be claimed"):
        home.errands.claim("a", "forge")
    assert home.errands.claim_next("forge") is None
    answered = home.errands.answer("a", "Yes.")
    assert answered.status == "pending"
    assert json.loads(answered.notes or "") == {
        "text": "careful", "question": "May I push?", "answer": "Yes.",
    }  # fmt: skip
    with pytest.raises(PreconditionFailed, match="cannot be answered"):
        home.errands.answer("a", "Again.")
    assert types_of(home, "a") == ["created", "claimed", "parked", "answered"]


def test_an_item_can_wait_for_a_person_from_the_beginning(home: AgentHome) -> None:
    home.errands.enqueue("p", "persona-amendment", {}, status="waiting_human")
    assert home.errands.replay() == []
    assert home.errands.answer("p", "ok").status == "pending"


def test_tries_are_counted_and_come_to_an_end(home: AgentHome) -> None:
    add(home, "a")
    for attempt in (1, 2, 3):
        assert home.errands.claim("a", "forge").lease.attempt == attempt
        home.errands.resolve("a", "failed", notes=f"broke {attempt}")
        if attempt < 3:
            assert home.errands.retry("a").status == "pending"
    with pytest.raises(PreconditionFailed, match="tried 3 times"):
        home.errands.retry("a")
    assert home.errands.reopen("a", "a person says so").status == "pending"
    assert home.errands.claim("a", "forge").lease.attempt == 4


def test_what_is_held_or_done_is_not_retried(home: AgentHome) -> None:
    add(home, "a", "b")
    home.errands.claim("a", "forge")
    with pytest.raises(HeldByAnother):
        home.errands.retry("a")
    shift_clock(home, TEN_MINUTES + 1)
    assert home.errands.retry("a", delay_ms=TEN_MINUTES).status == "pending"
    home.errands.resolve("b", "done")
    with pytest.raises(PreconditionFailed, match="cannot be retried"):
        home.errands.retry("b")


def test_what_was_left_alone_too_often_fails_instead_of_going_round(home: AgentHome) -> None:
    add(home, "poison", "good")
    for _ in range(2):
        held = home.errands.claim("poison", "forge")
        shift_clock(home, TEN_MINUTES + 1)
    assert held.lease.attempt == 2
    got = home.errands.claim_next("forge", max_attempts=2)
    assert got is not None
    assert got.errand.id == "good"
    given_up = home.errands.get("poison")
    assert given_up.status == "failed"
    assert "claimed 2 times" in (given_up.notes or "")


def test_replay_gives_what_waits_and_what_was_left_alone_the_oldest_first(home: AgentHome) -> None:
    add(home, "stale", "waits", "held", "parked", "ended")
    home.errands.claim("stale", "gone")
    shift_clock(home, TEN_MINUTES + 1)
    home.errands.claim("held", "forge")
    home.errands.park("parked", "?")
    home.errands.resolve("ended", "cancelled")
    found = home.errands.replay()
    assert [(one.errand.id, one.why) for one in found] == [("stale", "stale"), ("waits", "pending")]
    assert [one.errand.id for one in home.errands.replay(owner="gone")] == ["stale"]
    assert [one.errand.id for one in home.errands.replay(threshold_ms=2 * TEN_MINUTES)] == ["waits"]


def test_notes_are_added_to_and_every_earlier_text_is_kept(home: AgentHome) -> None:
    home.errands.enqueue("a", "review", {}, notes="by hand")
    home.errands.annotate("a", {"session_id": "s1"})
    home.errands.annotate("a", {"session_id": "s2", "n": None})
    ended = home.errands.resolve("a", "done", notes="merged")
    assert json.loads(ended.notes or "") == {
        "text": "by hand", "session_id": "s2", "n": None, "resolution": "merged",
    }  # fmt: skip
    earlier = [notes for _, notes in home.errands.earlier_notes("a")]
    assert earlier == [
        "by hand",
        '{"text":"by hand","session_id":"s1"}',
        '{"text":"by hand","session_id":"s2","n":null}',
    ]


def test_delivered_again_is_the_same_work_and_otherwise_is_told_once(home: AgentHome) -> None:
    home.errands.enqueue("a", "review", '{"pr": 1}')
    same = home.errands.enqueue("a", "review", '{ "pr":1 }')
    assert (same.inserted, same.differs) == (False, ())
    for _ in range(2):
        other = home.errands.enqueue("a", "fix", '{"pr":2}')
        assert (other.inserted, other.differs) == (False, ("kind", "payload"))
    assert home.errands.get("a").payload == '{"pr": 1}'
    assert types_of(home, "a") == ["created", "conflict"]


def test_a_change_and_its_event_have_one_time_and_one_transaction(home: AgentHome) -> None:
    add(home, "a")
    held = home.errands.claim("a", "forge")
    assert home.diary.of("a")[-1].ts == held.errand.updated_at
    home.db.rows(
        "CREATE TRIGGER broken BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'x'); END"
    )
    for change in (
        lambda: home.errands.resolve("a", "done"),
        lambda: home.errands.annotate("a", {"k": 1}),
        lambda: home.errands.release("a"),
        lambda: home.errands.enqueue("b", "review", {}),
    ):
        with pytest.raises(StoreError):
            change()
    assert home.errands.get("a") == held.errand
    with pytest.raises(NotFound):
        home.errands.get("b")


def test_nothing_changes_or_removes_what_happened(home: AgentHome) -> None:
    add(home, "a")
    for statement in ("DELETE FROM events", "UPDATE events SET type = 'x'"):
        with pytest.raises(StoreError, match="append-only"), home.db.transaction("t") as c:
            c.execute(statement)


def test_an_event_with_a_key_is_written_once(home: AgentHome) -> None:
    assert home.diary.append("synced", {"n": 1}, key="ledger:7", ts=5) is not None
    assert home.diary.append("synced", {"n": 2}, key="ledger:7") is None
    assert [event.ts for event in home.diary.since(0)] == [5]


def test_what_happened_elsewhere_is_copied_once_with_its_own_time(home: AgentHome) -> None:
    add(home, "a")
    lines = [
        Line("shop:1", 10, "attempt_started", {"attempt": 1}, "shop", "a"),
        Line("shop:2", 20, "attempt_ended", '{"exit_code":0}', item="not here"),
    ]
    assert home.diary.copy(lines) == 2
    later = Line("shop:3", 30, "merged", {})
    assert home.diary.copy([*lines, later]) == 1
    assert [(e.ts, e.type, e.work_item_id) for e in home.diary.since(0)][:3] == [
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
def test_an_unknown_item_is_told_as_such(home: AgentHome, call) -> None:
    with pytest.raises(NotFound, match="there is no work item x"):
        call(home.errands)


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    where = tmp_path / "agent"
    where.mkdir()
    with sqlite3.connect(where / "state.sqlite") as connection:
        connection.execute("CREATE TABLE work_items (x)")
    before = (where / "state.sqlite").read_bytes()
    with pytest.raises(CaloronError, match=r"state\.sqlite"):
        AgentHome(where)
    with sqlite3.connect(where / "state.sqlite") as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master")]
    assert names == ["work_items"]
    assert before[:16] == (where / "state.sqlite").read_bytes()[:16]


def test_replay_leaves_out_what_may_not_begin_yet(home: AgentHome) -> None:
    add(home, "now")
    home.errands.enqueue("later", "review", {}, delay_ms=TEN_MINUTES)
    assert [one.errand.id for one in home.errands.replay()] == ["now"]
    shift_clock(home, TEN_MINUTES)
    assert [one.errand.id for one in home.errands.replay()] == ["now", "later"]


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        ('{"a":1}', '{"a":true}', True),
        ('{"a":[0]}', '{"a":[false]}', True),
        ('{"a":1,"b":2}', '{"b":2, "a":1.0}', False),
        ('{"a":[1,2]}', '{"a":[2,1]}', True),
        ('{"a":null}', "{}", True),
    ],
)
def test_a_delivery_is_another_one_if_its_json_is(home, one, other, differs) -> None:
    home.errands.enqueue("a", "review", one)
    assert home.errands.enqueue("a", "review", other).differs == (("payload",) if differs else ())


def test_the_key_of_a_conflict_does_not_grow_with_the_payload(home: AgentHome) -> None:
    home.errands.enqueue("a", "review", {})
    for _ in range(2):
        home.errands.enqueue("a", "review", {"text": "x" * 20_000})
    assert types_of(home, "a").count("conflict") == 1
    (longest,) = home.db.rows("SELECT max(length(key)) FROM caloron_event_keys")[0]
    assert longest < 200
