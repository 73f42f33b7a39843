"""The queue with real SQLite and real processes: claims, fencing, cap, order, events and clock."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from caloron.errors import StoreError
from caloron.store import queue as store
from caloron.store.database import Database
from tests.integration.store.conftest import PROCESSES, Queue


def _claim_until_empty(path: Path) -> list[tuple[str, int]]:
    """Claim items one by one until the queue is empty."""
    db = Database(path)
    # This test checks the assignment of claims, not their durability.
    db.rows("PRAGMA synchronous = OFF")
    mine: list[tuple[str, int]] = []
    while True:
        with db.transaction("worker") as connection:
            taken = store.claim(connection, ["implement"], holder="w", lease_ms=60_000, cap=10**6)
            if taken is None:
                return mine
            store.settle(connection, taken.item, taken.token, "done")
        mine.append((taken.item, taken.token))
        time.sleep(0.002)


def test_eight_processes_claim_two_thousand_items_exactly_once(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "queue.db")
    items = [f"item-{n}" for n in range(2000)]
    queue.add(*items)
    with PROCESSES.Pool(8) as pool:
        claims = [c for part in pool.map(_claim_until_empty, [queue.db.path] * 8) for c in part]
    assert Counter(item for item, _ in claims) == Counter(items)
    assert {token for _, token in claims} == {1}


def _work_under_a_cap(path: Path) -> int:
    """Claim and settle items; return the largest number in flight."""
    db = Database(path)
    most = 0
    for _ in range(200):
        with db.transaction("worker") as connection:
            taken = store.claim(connection, ["implement"], holder="w", lease_ms=60_000, cap=3)
            most = max(most, len(store.in_flight(connection)))
        if taken is None:
            if not db.rows("SELECT 1 FROM work_items WHERE status = 'pending'"):
                break
            time.sleep(0.002)
            continue
        with db.transaction("worker") as connection:
            store.settle(connection, taken.item, taken.token, "done")
    return most


def test_the_cap_is_exact_with_many_workers(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "queue.db")
    queue.add(*(f"item-{n}" for n in range(120)))
    with PROCESSES.Pool(6) as pool:
        most = pool.map(_work_under_a_cap, [queue.db.path] * 6)
    assert max(most) <= 3
    assert not queue.db.rows("SELECT 1 FROM work_items WHERE status <> 'done'")


def test_the_cap_counts_only_the_requested_kinds(queue: Queue) -> None:
    queue.add("a", "b")
    queue.add("v", kind="verify")
    assert queue.take("implement", cap=1)
    assert queue.take("implement", cap=1) is None
    verification = queue.take("verify", cap=1)
    assert verification is not None
    assert verification.item == "v"


def test_a_claim_sees_only_the_items_of_its_scope_but_the_cap_counts_all(queue: Queue) -> None:
    queue.add("shop-1/a", "shop-10/a")
    first = queue.take(scope="shop-1/")
    assert first is not None
    assert first.item == "shop-1/a"
    assert queue.take(scope="shop-1/") is None
    assert queue.take(scope="shop-10/", cap=1) is None


WRITES: dict[Callable[..., Any], tuple[Any, ...]] = {
    store.begin_attempt: (1000,),
    partial(store.renew, active=True): (1000,),
    store.write_result: ({"exit_code": 0},),
    store.settle: ("done",),
}


@pytest.mark.parametrize("write", WRITES, ids=["begin_attempt", "renew", "write_result", "settle"])
@pytest.mark.parametrize("how", ["reopened", "reopened and claimed", "cancelled"])
def test_every_write_with_an_old_token_changes_nothing(
    queue: Queue, write: Callable[..., Any], how: str
) -> None:
    queue.add("a")
    old = queue.must_take()
    queue.do(store.cancel if how == "cancelled" else store.reopen, "a", "taken over")
    if how.endswith("claimed"):
        assert queue.must_take().token > old.token
    before = queue.everything()
    with pytest.raises(store.LeaseLost):
        queue.do(write, "a", old.token, *WRITES[write])
    assert queue.everything() == before


def test_a_result_is_written_once(queue: Queue) -> None:
    queue.add("a")
    token = queue.must_take().token
    queue.do(store.write_result, "a", token, {"exit_code": 0})
    with pytest.raises(store.LeaseLost):
        queue.do(store.write_result, "a", token, {"exit_code": 1})
    assert queue.lease("a")["result"] == '{"exit_code": 0}'


def test_the_attempt_rises_only_when_an_agent_is_started(queue: Queue) -> None:
    queue.add("a")
    for starts in (False, False, True, True):
        taken = queue.must_take()
        if starts:
            number = queue.do(store.begin_attempt, "a", taken.token, 1000)
            assert number == taken.attempt + 1
            queue.do(store.renew, "a", taken.token, 1000, active=True)
        queue.do(store.reopen, "a", "again")
    assert queue.lease("a")["attempt"] == 2


def test_the_highest_priority_is_claimed_first_and_then_the_oldest_item(queue: Queue) -> None:
    queue.add("old", priority=1)
    time.sleep(0.005)
    queue.add("young", priority=1)
    queue.add("urgent", priority=5)
    assert [queue.must_take().item for _ in range(3)] == ["urgent", "old", "young"]


def test_an_item_waits_for_its_time_by_the_databases_clock(queue: Queue) -> None:
    queue.add("a", not_before=queue.do(store.now_ms) + 3_600_000)
    assert queue.take() is None
    queue.shift_clock(3_600_001)
    assert queue.must_take().item == "a"


def test_a_known_item_is_not_queued_twice(queue: Queue) -> None:
    queue.add("a")
    queue.add("a", priority=7)
    assert queue.must_take().item == "a"
    assert queue.take() is None
    assert queue.lease("a")["priority"] == 7


def test_leases_run_by_the_databases_clock_alone(queue: Queue) -> None:
    queue.add("a")
    taken = queue.must_take()
    (lease,) = queue.do(store.in_flight)
    assert lease.expires_at - lease.now_ms == pytest.approx(60_000, abs=5_000)
    queue.shift_clock(1_000_000)
    (lease,) = queue.do(store.in_flight)
    assert lease.expires_at < lease.now_ms
    queue.do(store.renew, "a", taken.token, 60_000, active=False)
    (lease,) = queue.do(store.in_flight)
    assert lease.expires_at > lease.now_ms


@pytest.mark.parametrize("statement", ["UPDATE events SET type = 'x'", "DELETE FROM events"])
def test_events_cannot_be_changed(queue: Queue, statement: str) -> None:
    queue.add("a")
    before = queue.everything()
    with pytest.raises(StoreError, match="append-only"):
        queue.do(sqlite3.Connection.execute, statement)
    assert queue.everything() == before


def test_an_event_with_a_key_is_appended_once(queue: Queue) -> None:
    assert queue.do(store.append_event, "seen", {"n": 1}, key="pull:7@3")
    assert not queue.do(store.append_event, "seen", {"n": 2}, key="pull:7@3")
    assert queue.do(store.append_event, "seen", {"n": 3})
    rows = queue.db.rows("SELECT payload FROM events")
    assert [row["payload"] for row in rows] == ['{"n": 1}', '{"n": 3}']


def test_a_change_and_its_event_commit_together_or_not_at_all(queue: Queue) -> None:
    queue.add("a")
    before = queue.everything()

    def claim_and_fail(connection: sqlite3.Connection) -> None:
        assert store.claim(connection, ["implement"], holder="me", lease_ms=60_000, cap=9)
        connection.execute("INSERT INTO nowhere VALUES (1)")

    with pytest.raises(StoreError):
        queue.do(claim_and_fail)
    assert queue.everything() == before
    queue.must_take()
    kinds = [r["type"] for r in queue.db.rows("SELECT type FROM events ORDER BY id")]
    assert kinds == ["work_item_created", "work_item_claimed"]


def test_every_change_of_an_item_is_an_event(queue: Queue) -> None:
    queue.add("a")
    token = queue.must_take().token
    queue.do(store.begin_attempt, "a", token, 1000)
    queue.do(store.write_result, "a", token, {"exit_code": 0})
    queue.do(store.settle, "a", token, "done", "all well")
    queue.do(store.reopen, "a", "once more")
    assert queue.do(store.cancel, "a", "not needed")
    assert not queue.do(store.cancel, "a", "not needed")
    events = queue.db.rows("SELECT * FROM events")
    assert {event["work_item_id"] for event in events} == {"a"}
    assert [event["type"] for event in events] == [
        "work_item_created", "work_item_claimed", "attempt_started", "attempt_ended",
        "work_item_resolved", "work_item_reopened", "work_item_resolved",
    ]  # fmt: skip
