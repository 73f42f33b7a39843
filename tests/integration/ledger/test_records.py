"""Records of ended sprints are quick to read and dropped once a fact has changed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import product
from pathlib import Path

import msgspec
import pytest

from caloron.domain.model.sprint import State
from caloron.domain.model.status import FIRST_STEP, Status
from caloron.domain.reporting.explain import why, why_sprint
from caloron.domain.reporting.learnings import SprintRecord
from caloron.ledger import run_history
from caloron.ledger.ledger import read_state
from caloron.ledger.reading import add_queue, light_state, open_ledger
from caloron.ledger.run_history import ended_records, store_records
from caloron.store import queue
from tests.integration.ledger.conftest import Book


@pytest.fixture
def ended(book: Book) -> Book:
    """A sprint of two tasks that has ended, and its record."""
    book.finish()
    store_records(book.ledger)
    assert book.count("records") == 1
    return book


def record_of(book: Book) -> SprintRecord:
    (record,) = book.read(ended_records)
    return record


def test_a_stored_record_equals_a_computed_one(ended: Book) -> None:
    kept = record_of(ended)
    ended.ledger.db.rows("DELETE FROM records")
    assert record_of(ended) == kept
    assert (kept.kpis.completed_tasks, kept.kpis.sprint_time_s) == (2, 100.0)


def test_a_stored_record_is_used_until_the_rules_change(
    ended: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = msgspec.structs.replace(record_of(ended), goal="from the record")
    ended.ledger.db.rows("UPDATE records SET data = ?", (msgspec.json.encode(other),))
    assert record_of(ended).goal == "from the record"
    monkeypatch.setattr(run_history, "RECORD_VERSION", "other rules")
    assert record_of(ended).goal == "a shop"
    store_records(ended.ledger)
    assert [r["made_by"] for r in ended.ledger.db.rows("SELECT * FROM records")] == ["other rules"]


def by_hand(book: Book) -> None:
    (data,) = book.ledger.db.rows("SELECT data FROM tasks WHERE id = 'a'")[0]
    new = json.dumps(json.loads(data) | {"step": "escalated", "reason": "no"}).encode()
    book.ledger.db.rows("UPDATE tasks SET data = ? WHERE id = 'a'", (new,))


def sprint_by_hand(book: Book) -> None:
    (data,) = book.ledger.db.rows("SELECT data FROM sprints")[0]
    spent = {"usd": 5.0, "estimated_usd": 0, "tokens_in": 1, "tokens_out": 1, "runs": 1}
    new = json.dumps(json.loads(data) | {"usage": {"spent": spent}}).encode()
    book.ledger.db.rows("UPDATE sprints SET data = ?", (new,))


def task_gone(book: Book) -> None:
    book.ledger.db.rows("DELETE FROM tasks WHERE id = 'b'")


def one_more_run(book: Book) -> None:
    book.claim(f"{book.sprint}/a/1-fix", "fix")


def an_end_of_a_run(book: Book) -> None:
    one_more_run(book)
    store_records(book.ledger)
    book.do(queue.begin_attempt, f"{book.sprint}/a/1-fix", 1, 1000)


@pytest.mark.parametrize(
    "change", [by_hand, sprint_by_hand, task_gone, one_more_run, an_end_of_a_run]
)
def test_a_changed_fact_deletes_the_record(ended: Book, change: Callable[[Book], None]) -> None:
    before = record_of(ended)
    change(ended)
    assert ended.count("records") == 0
    after = record_of(ended)
    if change is not one_more_run:
        assert after != before
    store_records(ended.ledger)
    assert (record_of(ended), ended.count("records")) == (after, 1)


def test_facts_of_another_sprint_keep_the_record(ended: Book) -> None:
    ended.begin(f"{ended.sprint}0/a/1-fix", "fix")
    assert ended.count("records") == 1


def test_an_unfinished_sprint_has_no_record(book: Book) -> None:
    book.tick()
    store_records(book.ledger)
    assert book.count("records") == 0


def test_a_ledger_without_a_table_of_records_can_be_read(ended: Book, tmp_path: Path) -> None:
    kept = record_of(ended)
    ended.ledger.db.rows("DROP TABLE records")
    with closing(open_ledger(tmp_path / "ledger.db")) as connection:
        assert ended_records(connection) == [kept]


def _light_with_queue(connection: sqlite3.Connection) -> State:
    light = light_state(connection)
    assert light is not None
    add_queue(connection, light)
    return light


def test_why_has_the_same_reasons_for_the_light_and_the_whole_state(book: Book) -> None:
    book.tick()
    cases = ((None, "", 0), (7, "", 0), (None, "h", 0), (None, "", 2))
    for status, (issue, head, interventions) in product(Status, cases):
        state = book.load().state
        task = state.tasks["a"].copy()
        task.step, task.reason = FIRST_STEP[status], "so it is"
        task.links.issue, task.supervision.interventions = issue, interventions
        task.change.adopt(head)
        book.commit_state(msgspec.structs.replace(state, tasks=state.tasks | {"a": task}))
        light, whole = book.read(_light_with_queue), book.read(read_state)
        assert why_sprint(light.sprint) == why_sprint(whole.sprint)
        assert {n: why(light, t) for n, t in light.tasks.items()} == {
            n: why(whole, t) for n, t in whole.tasks.items()
        }
