"""What retros and reports read from the ledger, and the files that they write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from caloron.domain.model.feedback import Feedback
from caloron.domain.model.sprint import Sprint
from caloron.domain.model.status import Status
from caloron.domain.reporting.kpis import Run
from caloron.errors import NotFound, UsageError
from caloron.ledger.ledger import TickCommit
from caloron.ledger.run_history import (
    ended_records,
    figures_of,
    find_sprint,
    waiting_states,
)
from caloron.store import queue
from tests.integration.ledger.conftest import Book

LEASE = 30_000


@pytest.fixture
def shift(book: Book) -> Callable[[int], None]:
    """Lets the database's clock go forward."""

    def forward(ms: int) -> None:
        book.ledger.db.rows("UPDATE clock_offset SET ms = ms + ?", (ms,))

    return forward


def claim(book: Book, item: str, role: str) -> int:
    with book.ledger.db.transaction("test") as connection:
        queue.enqueue(connection, item, role, "{}")
        found = queue.claim(connection, [role], holder="me", lease_ms=LEASE, cap=99)
    assert found is not None
    return found.token


def begin(book: Book, item: str, token: int) -> None:
    with book.ledger.db.transaction("test") as connection:
        queue.begin_attempt(connection, item, token, LEASE)


def end(book: Book, item: str, token: int, **result: Any) -> None:
    with book.ledger.db.transaction("test") as connection:
        queue.write_result(connection, item, token, {"exit_code": 0} | result)


def note(book: Book, item: str, **told: Any) -> None:
    with book.ledger.db.transaction("test") as connection:
        queue.append_event(connection, "agent_reported", told, item=item)


def runs(book: Book) -> tuple[Run, ...]:
    with book.ledger.db.snapshot() as connection:
        return figures_of(connection, book.sprint).runs


def test_a_run_is_told_with_its_time_its_cost_and_its_tools(book: Book, shift: Any) -> None:
    item = f"{book.sprint}/a/1-implement"
    token = claim(book, item, "implement")
    begin(book, item, token)
    shift(90_000)
    end(book, item, token)
    note(
        book, item, token=token, framework="x", usd=0.25, tokens_in=7, tokens_out=3, tools={"sh": 2}
    )
    (run,) = runs(book)
    assert (run.task, run.role, run.end, run.token) == ("a", "implement", "done", token)
    assert 90 <= run.seconds < 120
    assert (run.usd, run.tokens, run.tools, run.framework) == (0.25, 10, {"sh": 2}, "x")


def test_a_run_that_was_cut_short_and_the_one_after_it_are_two(book: Book) -> None:
    item = f"{book.sprint}/a/1-implement"
    begin(book, item, claim(book, item, "implement"))
    with book.ledger.db.transaction("test") as connection:
        queue.reopen(connection, item, "the attempt was interrupted")
    token = claim(book, item, "implement")
    begin(book, item, token)
    end(book, item, token, exit_code=9, last_line="no disk")
    cut, failed = runs(book)
    assert (cut.end, cut.problem) == ("interrupted", "the attempt was interrupted")
    assert (failed.end, failed.attempt, failed.problem) == ("failed", 2, "exit code 9: no disk")


@pytest.mark.parametrize(
    ("result", "trouble", "ended"),
    [
        ({"timed_out": True}, "", "failed"),
        ({"over": "its memory"}, "", "failed"),
        ({"exit_code": 1}, "quota", "interrupted"),
        ({}, "crash", "failed"),
    ],
)
def test_a_refusal_of_the_provider_is_not_the_agents_failure(
    book: Book, result: dict[str, Any], trouble: str, ended: str
) -> None:
    item = f"{book.sprint}/a/1-implement"
    token = claim(book, item, "implement")
    begin(book, item, token)
    end(book, item, token, **result)
    note(book, item, token=token, trouble=trouble, detail="why")
    assert [run.end for run in runs(book)] == [ended]


def test_a_verification_that_fails_before_it_starts_counts_as_failed(book: Book) -> None:
    item = f"{book.sprint}/a/2-verify"
    token = claim(book, item, "verify")
    with book.ledger.db.transaction("test") as connection:
        queue.settle(connection, item, token, "failed", "setup: no such package")
    (run,) = runs(book)
    assert (run.end, run.problem) == ("failed", "setup: no such package")


def test_planner_and_baseline_belong_to_no_task_unless_one_has_that_name(book: Book) -> None:
    for item, role in (("po/1-po", "po"), ("baseline/1-verify", "verify"), ("po/1-fix", "fix")):
        begin(book, f"{book.sprint}/{item}", claim(book, f"{book.sprint}/{item}", role))
    assert [(run.task, run.role) for run in runs(book)] == [
        ("", "po"),
        ("", "verify"),
        ("po", "fix"),
    ]


def test_sprints_whose_ids_begin_alike_do_not_share_runs(book: Book) -> None:
    begin(book, f"{book.sprint}0/a/1-fix", claim(book, f"{book.sprint}0/a/1-fix", "fix"))
    assert runs(book) == ()


def test_a_sprint_is_found_by_id_by_number_and_as_the_last_one(book: Book) -> None:
    book.ledger.create_sprint(Sprint(id="shop", number=0, goal="more"), {})
    with book.ledger.db.snapshot() as connection:
        found = [find_sprint(connection, name) for name in ("", "1", "#1", "shop-1", "2")]
        assert found == ["shop-2", "shop-1", "shop-1", "shop-1", "shop-2"]
        for unknown in ("3", "shop-9", "9" * 400):
            with pytest.raises(NotFound):
                find_sprint(connection, unknown)
        for bad in ("../x", "-x y", "\u0661", "\n"):
            with pytest.raises(UsageError):
                find_sprint(connection, bad)


def finish(
    book: Book,
    *,
    status: Status = Status.DONE,
    reason: str = "",
    feedback: Feedback | None = None,
) -> None:
    """End the sprint with its two tasks as a test wants them."""
    if not book.load().state.tasks:
        book.tick()
    loaded = book.load()
    sprint, tasks = loaded.state.sprint, dict(loaded.state.tasks)
    log = msgspec.structs.replace(tasks["a"].log, feedback=feedback)
    tasks["a"] = msgspec.structs.replace(tasks["a"], status=status, reason=reason, log=log)
    tasks["b"] = msgspec.structs.replace(tasks["b"], status=Status.DONE)
    ended = msgspec.structs.replace(sprint, phase="ended", ended_at=101.0)
    state = msgspec.structs.replace(loaded.state, sprint=ended, tasks=tasks)
    book.ledger.commit_tick(loaded, TickCommit(state=state))


def test_only_sprints_in_which_something_may_wait_are_looked_at_for_the_inbox(book: Book) -> None:
    with book.ledger.db.snapshot() as connection:
        assert [s.sprint.id for s in waiting_states(connection)] == ["shop-1"]
    finish(book)
    with book.ledger.db.snapshot() as connection:
        assert waiting_states(connection) == []
        assert [r.id for r in ended_records(connection)] == ["shop-1"]
    book.ledger.db.rows("UPDATE tasks SET status = 'Escalated' WHERE id = 'a'")
    with book.ledger.db.snapshot() as connection:
        assert [s.sprint.id for s in waiting_states(connection)] == ["shop-1"]


def test_a_run_that_was_cut_short_names_its_own_folder(book: Book) -> None:
    item = f"{book.sprint}/a/1-implement"
    first = claim(book, item, "implement")
    begin(book, item, first)
    with book.ledger.db.transaction("test") as connection:
        queue.reopen(connection, item, "the sprint was stopped")
    second = claim(book, item, "implement")
    begin(book, item, second)
    assert first != second
    assert [run.token for run in runs(book)] == [first, second]


def test_a_run_that_nobody_saw_end_has_lasted_until_it_was_heard_of_last(
    book: Book, shift: Any
) -> None:
    item = f"{book.sprint}/a/1-implement"
    token = claim(book, item, "implement")
    begin(book, item, token)
    shift(8_000)
    with book.ledger.db.transaction("test") as connection:
        queue.renew(connection, item, token, LEASE, active=True)
    shift(900_000)
    (run,) = runs(book)
    assert run.end == "running"
    assert 8 <= run.seconds < 60
