"""The ledger data that retros and reports read, and the files that they write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from caloron.domain.model.sprint import Sprint
from caloron.domain.reporting.kpis import Run
from caloron.errors import NotFound, UsageError
from caloron.ledger.run_history import (
    ended_records,
    figures_of,
    find_sprint,
    waiting_states,
)
from caloron.store import queue
from tests.integration.ledger.conftest import LEASE_MS, Book


@pytest.fixture
def shift(book: Book) -> Callable[[int], None]:
    """Move the clock of the database forward."""

    def forward(ms: int) -> None:
        book.ledger.db.rows("UPDATE clock_offset SET ms = ms + ?", (ms,))

    return forward


def runs(book: Book) -> tuple[Run, ...]:
    return book.read(figures_of, book.sprint).runs


def test_a_run_has_its_time_its_cost_and_its_tools(book: Book, shift: Any) -> None:
    item = f"{book.sprint}/a/1-implement"
    token = book.begin(item, "implement")
    shift(90_000)
    book.end(item, token)
    book.report(
        item, token=token, framework="x", usd=0.25, tokens_in=7, tokens_out=3, tools={"sh": 2}
    )
    (run,) = runs(book)
    assert (run.task, run.role, run.end, run.token) == ("a", "implement", "done", token)
    assert 90 <= run.seconds < 120
    assert (run.usd, run.tokens, run.tools, run.framework) == (0.25, 10, {"sh": 2}, "x")


def test_an_interrupted_run_and_the_next_run_are_two_runs(book: Book) -> None:
    item = f"{book.sprint}/a/1-implement"
    first = book.begin(item, "implement")
    book.do(queue.reopen, item, "the attempt was interrupted")
    token = book.begin(item, "implement")
    book.end(item, token, exit_code=9, last_line="no disk")
    cut, failed = runs(book)
    assert (cut.end, cut.problem) == ("interrupted", "the attempt was interrupted")
    # The token names the folder of a run.
    assert first != token
    assert (cut.token, failed.token) == (first, token)
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
    token = book.begin(item, "implement")
    book.end(item, token, **result)
    book.report(item, token=token, trouble=trouble, detail="why")
    assert [run.end for run in runs(book)] == [ended]


def test_a_verification_that_fails_before_it_starts_counts_as_failed(book: Book) -> None:
    item = f"{book.sprint}/a/2-verify"
    token = book.claim(item, "verify")
    book.do(queue.settle, item, token, "failed", "setup: no such package")
    (run,) = runs(book)
    assert (run.end, run.problem) == ("failed", "setup: no such package")


def test_planner_and_baseline_belong_to_no_task_unless_a_task_has_that_name(book: Book) -> None:
    for item, role in (("po/1-po", "po"), ("baseline/1-verify", "verify"), ("po/1-fix", "fix")):
        book.begin(f"{book.sprint}/{item}", role)
    rows = [(run.task, run.role) for run in runs(book)]
    assert rows == [("", "po"), ("", "verify"), ("po", "fix")]


def test_sprints_with_a_common_id_prefix_do_not_share_runs(book: Book) -> None:
    book.begin(f"{book.sprint}0/a/1-fix", "fix")
    assert runs(book) == ()


def test_a_sprint_can_be_named_by_id_by_number_and_as_the_last(book: Book) -> None:
    book.ledger.create_sprint(Sprint(id="shop", number=0, goal="more"), {})
    with book.ledger.db.snapshot() as connection:
        rows = [find_sprint(connection, name) for name in ("", "1", "#1", "shop-1", "2")]
        assert rows == ["shop-2", "shop-1", "shop-1", "shop-1", "shop-2"]
        for unknown in ("3", "shop-9", "9" * 400):
            with pytest.raises(NotFound):
                find_sprint(connection, unknown)
        for bad in ("../x", "-x y", "\u0661", "\n"):
            with pytest.raises(UsageError):
                find_sprint(connection, bad)


def test_the_inbox_reads_only_sprints_that_may_have_items(book: Book) -> None:
    def waiting() -> list[str]:
        return [state.sprint.id for state in book.read(waiting_states)]

    assert waiting() == ["shop-1"]
    book.finish()
    assert waiting() == []
    assert [record.id for record in book.read(ended_records)] == ["shop-1"]
    book.ledger.db.rows("UPDATE tasks SET status = 'Escalated' WHERE id = 'a'")
    assert waiting() == ["shop-1"]


def test_a_run_without_an_end_lasts_until_its_last_heartbeat(book: Book, shift: Any) -> None:
    item = f"{book.sprint}/a/1-implement"
    token = book.begin(item, "implement")
    shift(8_000)
    book.do(queue.renew, item, token, LEASE_MS, active=True)
    shift(900_000)
    (run,) = runs(book)
    assert run.end == "running"
    assert 8 <= run.seconds < 60
