"""What retros and reports read from the ledger, and the files that they write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from caloron.domain.feedback import Feedback
from caloron.domain.retro import Run
from caloron.domain.sprint import Sprint
from caloron.domain.status import Status
from caloron.errors import NotFound, StoreError, UsageError
from caloron.ledger.figures import figures_of, find_sprint, read_kept, waiting_states
from caloron.ledger.learnings import context_for, learnings_file, take_in, write_learnings
from caloron.ledger.ledger import TickCommit
from caloron.ledger.records import ended_records
from caloron.stages.retro_page import hold_retro
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


def finish(book: Book, *, status: Status = Status.DONE, **of_task: Any) -> None:
    """End the sprint with its two tasks as a test wants them."""
    if not book.load().state.tasks:
        book.tick()
    loaded = book.load()
    sprint, tasks = loaded.state.sprint, dict(loaded.state.tasks)
    tasks["a"] = msgspec.structs.replace(tasks["a"], status=status, **of_task)
    tasks["b"] = msgspec.structs.replace(tasks["b"], status=Status.DONE)
    ended = msgspec.structs.replace(sprint, phase="ended", ended_at=101.0)
    state = msgspec.structs.replace(loaded.state, sprint=ended, tasks=tasks)
    book.ledger.commit_tick(loaded, TickCommit(state=state))


def read(workspace: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(learnings_file(workspace).read_bytes())
    return found


def test_what_was_learned_is_worked_out_anew_from_the_ledger(book: Book, tmp_path: Path) -> None:
    finish(book, feedback=Feedback(task_clarity=2))
    hold_retro(book.ledger, tmp_path, book.sprint, 200.0)
    before = read(tmp_path)
    assert before["sprints"][0]["avg_clarity"] == 2.0
    assert [i["rule"] for i in before["improvements"]] == ["task-clarity"]
    finish(book, feedback=Feedback(task_clarity=9))
    hold_retro(book.ledger, tmp_path, book.sprint, 200.0)
    after = read(tmp_path)
    assert (after["sprints"][0]["avg_clarity"], after["improvements"]) == (9.0, [])
    assert len(after["sprints"]) == 1


def test_the_retro_is_written_for_a_sprint_that_came_to_nothing(book: Book, tmp_path: Path) -> None:
    loaded = book.load()
    sprint = msgspec.structs.replace(
        loaded.state.sprint, phase="ended", ended_at=5.0, stopped="main is <red>"
    )
    state = msgspec.structs.replace(loaded.state, sprint=sprint)
    book.ledger.commit_tick(loaded, TickCommit(state=state))
    hold_retro(book.ledger, tmp_path, book.sprint, 200.0)
    page = (tmp_path / "retro_report.md").read_text()
    assert "**stopped**: main is &lt;red>" in page
    assert "0 of 0 tasks done" in page
    assert (tmp_path / "retro" / f"sprint-{book.sprint}.md").read_text() == page


def test_a_planner_is_told_of_earlier_sprints_only_and_that_is_remembered(
    book: Book, tmp_path: Path
) -> None:
    finish(book, feedback=Feedback(task_clarity=2))
    assert context_for(book.ledger, book.sprint) == ""
    told = context_for(book.ledger, "shop-2")
    assert "shop-1: 2/2 tasks done, clarity 2.0/10" in told
    write_learnings(book.ledger, tmp_path, busy=False)
    assert read(tmp_path)["last_po_context"] == told
    (improvement,) = read(tmp_path)["improvements"]
    assert (improvement["status"], improvement["applied_in"]) == ("applied", ["shop-2"])


ANCESTOR = {
    "sprints": [
        {
            "total": 2,
            "completed": 1,
            "failed": 1,
            "avg_clarity": 3.5,
            "supervisor_events": 2,
            "sprint_time_s": 61.2,
            "blockers": ['say "please"', "Review cycle 1: no tests", 7, None],
        },
        {"sprint_id": 2, "total": 3, "completed": 3, "avg_clarity": 8},
        {"sprint_id": 2, "total": 1, "completed": 0, "avg_clarity": None},
        {"sprint_id": 2, "total": 1, "completed": 0, "avg_clarity": None},
        "not a record",
    ],
    "improvements": ["2 tasks had low clarity", "1 task had low clarity", "", 'use "quotes"'],
    "po_context": "",
    "last_po_context": "what it said",
}


def put(workspace: Path, content: Any) -> Path:
    file = learnings_file(workspace)
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_the_file_of_an_older_caloron_is_taken_over_with_all_its_quirks(
    book: Book, tmp_path: Path
) -> None:
    put(tmp_path, ANCESTOR)
    (told,) = take_in(book.ledger, tmp_path, busy=False)
    assert "3 sprints and 2 improvements" in told
    assert book.events("state_imported") == 1
    kept = read_kept_of(book)
    assert [s.id for s in kept.sprints] == ["before-1", "before-2", "before-2-again"]
    assert kept.sprints[0].blockers == ('say "please"', "Review cycle 1: no tests", "7")
    assert kept.sprints[0].kpis.total_interventions == 2
    context = context_for(book.ledger, book.sprint)
    assert "low clarity" in context
    assert "before-2-again: 0/1 tasks done" in context
    assert take_in(book.ledger, tmp_path, busy=False) == []
    write_learnings(book.ledger, tmp_path, busy=False)
    assert [s["sprint_id"] for s in read(tmp_path)["sprints"]] == [s.id for s in kept.sprints]


def read_kept_of(book: Book) -> Any:
    with book.ledger.db.snapshot() as connection:
        return read_kept(connection)


def test_our_own_file_taken_over_again_changes_nothing(book: Book, tmp_path: Path) -> None:
    put(tmp_path, ANCESTOR)
    finish(book, feedback=Feedback(task_clarity=2))
    hold_retro(book.ledger, tmp_path, book.sprint, 200.0)
    kept, content = read_kept_of(book), read(tmp_path)
    put(tmp_path, json.dumps(content, indent=3))
    take_in(book.ledger, tmp_path, busy=False)
    assert read_kept_of(book) == kept
    write_learnings(book.ledger, tmp_path, busy=False)
    assert read(tmp_path) == content


def test_a_person_may_add_and_retire_improvements_in_the_file(book: Book, tmp_path: Path) -> None:
    finish(book, feedback=Feedback(task_clarity=2))
    hold_retro(book.ledger, tmp_path, book.sprint, 200.0)
    content = read(tmp_path)
    content["improvements"][0]["status"] = "retired"
    content["improvements"].append("Never touch the billing code")
    content["sprints"][0]["completed"] = 77
    put(tmp_path, content)
    write_learnings(book.ledger, tmp_path, busy=False)
    context = context_for(book.ledger, "shop-2")
    assert "Never touch the billing code" in context
    assert "Write clearer tasks" not in context
    # The numbers of our own sprints are the ledger's.
    assert read(tmp_path)["sprints"][0]["completed"] == 2


def test_a_file_changed_while_agents_work_is_set_aside(book: Book, tmp_path: Path) -> None:
    file = put(tmp_path, ANCESTOR)
    text = file.read_bytes()
    (told,) = write_learnings(book.ledger, tmp_path, busy=True).told
    (kept,) = tmp_path.glob("learnings.json.foreign-*")
    assert str(kept) in told
    assert kept.read_bytes() == text
    assert read(tmp_path)["sprints"] == []
    assert book.events("state_file_set_aside") == 1


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '{"sprints": 3}', '{"improvements": {}}', "[" * 100_000, "\x00\x00"],
)
def test_a_corrupt_file_is_set_aside_and_written_anew(
    book: Book, tmp_path: Path, text: str
) -> None:
    put(tmp_path, text)
    (told,) = write_learnings(book.ledger, tmp_path, busy=False).told
    assert "corrupt" in told
    assert read(tmp_path)["sprints"] == []
    assert [p.read_text() for p in tmp_path.glob("learnings.json.corrupt-*")] == [text]


def test_a_folder_in_the_place_of_the_file_is_said_and_left_alone(
    book: Book, tmp_path: Path
) -> None:
    learnings_file(tmp_path).mkdir()
    with pytest.raises(StoreError, match="cannot be used"):
        take_in(book.ledger, tmp_path, busy=False)
    assert learnings_file(tmp_path).is_dir()


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


def test_text_of_agents_stays_text_in_the_retros_page(book: Book, tmp_path: Path) -> None:
    evil = "\x1b[31m <script>alert(1)</script> | [x](javascript:1) `"
    finish(book, status=Status.ESCALATED, reason=evil)
    hold_retro(book.ledger, tmp_path, book.sprint, 200.0)
    page = (tmp_path / "retro_report.md").read_text()
    themes = page.partition("## Themes")[2].partition("\n## ")[0]
    assert "alert(1)" in themes
    for part in (page, (tmp_path / "retro" / f"sprint-{book.sprint}.md").read_text()):
        assert "\x1b" not in part
        assert "<script" not in part
        assert "[x](" not in part


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
