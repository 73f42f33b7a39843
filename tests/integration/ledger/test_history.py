"""`sprints.json`: our own records and an older Caloron's, once each, whatever happens to it."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from caloron.domain.feedback import Feedback
from caloron.domain.sprint import Sprint
from caloron.domain.status import Status
from caloron.errors import NotFound
from caloron.ledger.earlier import earlier_sprints, find_earlier
from caloron.ledger.figures import find_sprint, read_kept
from caloron.ledger.history import take_in_history, write_history
from caloron.ledger.ledger import TickCommit
from caloron.ledger.locate import ProjectPaths
from caloron.store.database import open_read_only
from tests.integration.ledger.conftest import PLAN, Book
from tests.integration.ledger.test_figures import finish

OLDER: list[dict[str, Any]] = [
    {"sprint_id": 1, "goal": 'a "cart"', "exit_code": 1, "duration_s": 0},
    {
        "sprint_id": 2,
        "goal": "pay",
        "exit_code": 0,
        "duration_s": 9,
        "completed_at": "2026-01-02T03:04:05+00:00",
        "total_tasks": 2,
        "completed_tasks": 1,
        "failed_tasks": 1,
        "avg_clarity": 5.5,
        "blockers": ['say "please"'],
        "note_of_a_person": {"kept": True},
    },
    {"sprint_id": 2, "goal": "pay again", "exit_code": 0, "total_tasks": 1, "completed_tasks": 1},
]


@pytest.fixture
def project(tmp_path: Path) -> ProjectPaths:
    """A project whose ledger is the book's own."""
    (tmp_path / "ledger.sqlite").symlink_to("ledger.db")
    return ProjectPaths("shop", tmp_path)


def put(project: ProjectPaths, content: Any) -> None:
    text = content if isinstance(content, str) else json.dumps({"sprints": content})
    project.sprints_json.write_text(text)


def read(project: ProjectPaths) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(project.sprints_json.read_bytes())["sprints"]
    return found


def kept_beside(project: ProjectPaths, kind: str) -> list[str]:
    return [p.read_text() for p in sorted(project.path.glob(f"sprints.json.{kind}-*"))]


def test_a_sprint_that_ended_is_recorded_with_its_own_numbers(
    book: Book, project: ProjectPaths
) -> None:
    finish(book, feedback=Feedback(task_clarity=2, blockers=("no price",)))
    assert write_history(book.ledger, project) == []
    (record,) = read(project)
    assert (record["sprint_id"], record["id"], record["exit_code"]) == (1, "shop-1", 0)
    assert (record["total_tasks"], record["completed_tasks"], record["failed_tasks"]) == (2, 2, 0)
    assert (record["avg_clarity"], record["blockers"]) == (2.0, ["no price"])


def test_a_sprint_that_went_on_and_ended_again_is_recorded_anew(
    book: Book, project: ProjectPaths
) -> None:
    finish(book)
    write_history(book.ledger, project)
    state = book.load().state
    state.tasks["b"].status = Status.ESCALATED
    book.ledger.commit_tick(book.load(), TickCommit(state=state))
    write_history(book.ledger, project)
    (record,) = read(project)
    assert (record["completed_tasks"], record["exit_code"]) == (1, 10)


def test_a_crash_before_the_record_is_made_up_for_by_the_next_sprint(
    book: Book, project: ProjectPaths
) -> None:
    finish(book)
    other = Sprint(id="shop", number=0, goal="more", given_plan=PLAN, created_at=5.0)
    book.sprint = book.ledger.create_sprint(other, {}).id
    finish(book)
    write_history(book.ledger, project)
    assert [r["id"] for r in read(project)] == ["shop-1", "shop-2"]


def test_the_sprints_of_an_older_caloron_stay_and_its_file_is_kept_beside(
    book: Book, project: ProjectPaths
) -> None:
    book.ledger.db.rows("DELETE FROM sprints")
    put(project, OLDER)
    (told,) = take_in_history(book.ledger, project)
    assert "3 sprints" in told
    assert kept_beside(project, "foreign") == [json.dumps({"sprints": OLDER})]
    records = read(project)
    assert [r["sprint_id"] for r in records] == [1, 2, 3]
    assert all(r["adopted"] for r in records)
    assert records[1]["note_of_a_person"] == {"kept": True}
    assert records[2]["recorded_id"] == 2
    new = Sprint(id="shop", number=0, goal="new", created_at=5.0)
    assert book.ledger.create_sprint(new, {}).id == "shop-4"
    assert take_in_history(book.ledger, project) == []
    assert write_history(book.ledger, project) == []
    assert read(project) == records
    # A copy that somebody brings back, or a crash before it was kept beside, doubles nothing.
    put(project, json.dumps({"sprints": OLDER}, indent=3))
    take_in_history(book.ledger, project)
    assert read(project) == records


def test_who_only_looks_sees_the_same_before_and_after_they_are_taken_over(
    book: Book, project: ProjectPaths
) -> None:
    book.ledger.db.rows("DELETE FROM sprints")
    put(project, OLDER)
    with closing(open_read_only(project.ledger)) as connection:
        before = earlier_sprints(project, connection)
        assert earlier_sprints(project, None) == before
        take_in_history(book.ledger, project)
        assert earlier_sprints(project, connection) == before
        assert earlier_sprints(project, connection, 1).sprints == before.sprints[:1]
        assert before.total == 3
        for name in ("2", "#2", "shop-2"):
            found = find_earlier(project, connection, name)
            assert found is not None
            assert found.record["goal"] == "pay"
        for name in ("9", "shop-x", "other-2", "1" * 30):
            assert find_earlier(project, connection, name) is None
        with pytest.raises(NotFound) as refused:
            find_sprint(connection, "2")
        assert "caloron show 2" in refused.value.hint
        kept = read_kept(connection)
        assert [record.id for record in kept.sprints] == ["shop-1", "shop-2", "shop-3"]


@pytest.mark.parametrize("text", ["", "{", "[3", '{"sprints": 3}', '{"sprints": [{"goal'])
def test_a_corrupt_file_is_set_aside_and_written_anew(
    book: Book, project: ProjectPaths, text: str
) -> None:
    finish(book)
    put(project, text)
    with closing(open_read_only(project.ledger)) as connection:
        assert "cannot be read" in earlier_sprints(project, connection).problem
    (told,) = take_in_history(book.ledger, project)
    assert "corrupt" in told
    assert kept_beside(project, "corrupt") == [text]
    assert [r["id"] for r in read(project)] == ["shop-1"]


def test_what_an_older_caloron_adds_later_is_taken_over_too_and_our_numbers_stay_ours(
    book: Book, project: ProjectPaths
) -> None:
    finish(book)
    write_history(book.ledger, project)
    (ours,) = read(project)
    edited = ours | {"completed_tasks": 99, "goal": "another goal"}
    put(project, [edited, {"sprint_id": 2, "goal": "theirs"}])
    (told,) = write_history(book.ledger, project)
    assert "1 sprints" in told
    records = read(project)
    assert [(r["sprint_id"], r["goal"]) for r in records] == [(1, "a shop"), (2, "theirs")]
    assert records[0] == ours


def test_a_file_without_news_is_taken_without_a_word(book: Book, project: ProjectPaths) -> None:
    finish(book)
    write_history(book.ledger, project)
    ours = read(project)
    book.ledger.db.rows("DELETE FROM kv")
    book.ledger.db.rows("DELETE FROM entries")
    for content in ([], [ours[0] | {"tools_used": ["written", "before"]}]):
        put(project, content)
        assert take_in_history(book.ledger, project) == []
        assert read(project) == ours
        book.ledger.db.rows("DELETE FROM kv")
    assert list(project.path.glob("sprints.json.*")) == []
    put(project, ["junk"])
    take_in_history(book.ledger, project)
    assert kept_beside(project, "foreign") == ['{"sprints": ["junk"]}']


def test_a_file_that_was_deleted_comes_back(book: Book, project: ProjectPaths) -> None:
    finish(book)
    write_history(book.ledger, project)
    before = read(project)
    project.sprints_json.unlink()
    take_in_history(book.ledger, project)
    assert read(project) == before


def test_the_end_of_a_sprint_works_out_no_other_sprint(
    book: Book, project: ProjectPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(book)
    write_history(book.ledger, project)
    monkeypatch.setattr("caloron.ledger.history.figures_of", None)
    write_history(book.ledger, project)
    assert len(read(project)) == 1
