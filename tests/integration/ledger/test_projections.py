"""The sprint's file: what is in it, whose it is, and what becomes of an edit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from caloron.domain.imports import Import, take_over
from caloron.ledger.ledger import TickCommit
from caloron.ledger.projected import digest, set_aside
from caloron.ledger.projections import kv_path, kv_text, look_at, write_kv
from tests.integration.ledger.conftest import Book


def write(book: Book, now: float = 100.0) -> bytes:
    """Commit a tick with its file, as the loop does."""
    loaded = book.load()
    decision = book.decide(loaded, now)
    text = kv_text(decision.state, now)
    book.ledger.commit_tick(
        loaded, TickCommit(state=decision.state, actions=decision.actions, projection=digest(text))
    )
    write_kv(book.sprint, text)
    return text


def edit(book: Book, change: dict[str, Any]) -> None:
    content = json.loads(kv_path(book.sprint).read_bytes())
    content["state"]["tasks"]["a"] |= change
    kv_path(book.sprint).write_text(json.dumps(content))


def test_the_file_has_the_shape_that_scripts_know(book: Book) -> None:
    content = json.loads(write(book))
    assert set(content) == {"state", "interventions", "since"}
    assert content["state"]["sprint_id"] == "shop-1"
    assert content["interventions"] == {}
    assert content["state"]["tasks"]["b"] == {
        "id": "b",
        "title": "Title of b",
        "status": "Pending",
        "depends_on": ["a"],
        "agent_id": "b",
        "reviewer_id": "reviewer-1",
        "issue_number": None,
        "pr_number": None,
        "started_at": None,
        "completed_at": None,
        "intervention_count": 0,
    }


def test_interventions_are_counted_per_agent(book: Book) -> None:
    write(book)
    state = book.load().state
    state.tasks["a"].interventions = 2
    assert json.loads(kv_text(state, 1.0))["interventions"] == {"a": {"count": 2}}


def test_a_file_as_we_wrote_it_is_ours(book: Book) -> None:
    assert look_at(book.ledger, book.sprint).kind == "missing"
    write(book)
    assert look_at(book.ledger, book.sprint).kind == "ours"


def test_a_crash_between_commit_and_file_leaves_a_file_that_is_still_ours(book: Book) -> None:
    first = write(book, now=100.0)
    write(book, now=200.0)
    kv_path(book.sprint).write_bytes(first)
    assert look_at(book.ledger, book.sprint).kind == "ours"
    write(book, now=300.0)
    kv_path(book.sprint).write_bytes(first)
    assert look_at(book.ledger, book.sprint).kind == "edited"


def test_an_edit_is_seen_with_what_it_says(book: Book) -> None:
    write(book)
    edit(book, {"status": "Done", "intervention_count": 1})
    found = look_at(book.ledger, book.sprint)
    assert found.kind == "edited"
    assert found.content is not None
    assert found.content.statuses == {"a": "Done", "b": "Pending"}
    assert found.content.interventions == {"a": 1, "b": 0}


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"state": 3}', b"\xff\xfe", b"null"])
def test_a_file_that_makes_no_sense_is_corrupt(book: Book, text: bytes) -> None:
    write(book)
    kv_path(book.sprint).write_bytes(text)
    assert look_at(book.ledger, book.sprint).kind == "corrupt"


def test_what_is_set_aside_is_kept_and_written_down(book: Book) -> None:
    write(book)
    kv_path(book.sprint).write_bytes(b"{")
    kept = set_aside(book.ledger, kv_path(book.sprint), "corrupt")
    assert kept.read_bytes() == b"{"
    assert kept.name.startswith("shop-1.json.corrupt-")
    assert not kv_path(book.sprint).exists()
    assert book.events("state_file_set_aside") == 1
    write(book)
    assert look_at(book.ledger, book.sprint).kind == "ours"


def test_a_sprint_id_that_leaves_its_folder_is_refused() -> None:
    with pytest.raises(Exception, match="sprint"):
        kv_path("../../etc/passwd")


@pytest.mark.parametrize("told", [3, {"count": 3}], ids=["an older Caloron's", "ours"])
def test_interventions_may_be_set_by_agent_in_either_form(book: Book, told: Any) -> None:
    write(book)
    content = json.loads(kv_path(book.sprint).read_bytes())
    content["interventions"] = {"a": told}
    kv_path(book.sprint).write_text(json.dumps(content))
    found = look_at(book.ledger, book.sprint).content
    assert found is not None
    decision, outcome = take_over(book.load().state, found, 200.0)
    assert decision.state.tasks["a"].interventions == 3
    assert outcome == {"a": "interventions set to 3"}


def test_a_file_that_says_nothing_new_about_interventions_changes_nothing(book: Book) -> None:
    content = Import(statuses={}, interventions={"a": 0}, agents={"ghost": 4})
    assert take_over(book.tick().state, content, 200.0)[1] == {}


def test_a_file_that_was_there_before_the_sprint_is_not_about_it(book: Book) -> None:
    older = {"state": {"tasks": {"a": {"status": "Done"}}}, "interventions": {"a": 2}, "since": ""}
    kv_path(book.sprint).parent.mkdir(parents=True)
    kv_path(book.sprint).write_text(json.dumps(older))
    assert look_at(book.ledger, book.sprint).kind == "earlier"
