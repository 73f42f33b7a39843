"""The files of the workspace: in the shapes that scripts know, and nobody's words are lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from caloron.domain.sprint import Sprint
from caloron.ledger.workfiles import WorkFiles
from tests.integration.ledger.conftest import PLAN, Book
from tests.integration.ledger.test_figures import begin, claim, end, finish, note


class Desk:
    """The workspace of the book's project, and what was told about it."""

    def __init__(self, book: Book, place: Path) -> None:
        self.place = place
        self.told: list[str] = []
        self.files = WorkFiles(
            book.ledger, place, framework="stub", frameworks=("stub",), tell=self.told.append
        )

    def read(self, name: str) -> Any:
        return json.loads((self.place / name).read_bytes())

    def put(self, name: str, content: Any) -> None:
        file = self.place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content))

    def beside(self, name: str) -> list[str]:
        return [p.read_text() for p in sorted(self.place.glob(f"{name}.*-*"))]


@pytest.fixture
def desk(book: Book, tmp_path: Path) -> Desk:
    return Desk(book, tmp_path / "workspace")


def work(book: Book, task: str, **told: Any) -> None:
    item = f"{book.sprint}/{task}/1-implement"
    token = claim(book, item, "implement")
    begin(book, item, token)
    end(book, item, token)
    note(book, item, token=token, framework="stub", model="m", **told)


def test_the_plan_is_written_as_the_list_that_scripts_know(book: Book, desk: Desk) -> None:
    desk.files.write_plan(book.tick().state)
    assert desk.read("dag.json")[1] == {
        "id": "b",
        "title": "Title of b",
        "depends_on": ["a"],
        "agent_prompt": "Do b",
        "framework": "stub",
    }
    manifest = yaml.safe_load((desk.place / "agents" / "a.agent").read_text())
    assert (manifest["name"], manifest["version"]) == ("caloron-agent-a", "1.0.0")
    assert desk.told == []


def test_a_plan_of_somebody_else_is_kept_beside_and_told(book: Book, desk: Desk) -> None:
    state = book.tick().state
    for text in ('[{"id": "old"}]', "{half"):
        desk.put("dag.json", text)
        desk.files.write_plan(state)
        assert len(desk.read("dag.json")) == 2
    assert sorted(desk.beside("dag.json")) == ['[{"id": "old"}]', "{half"]
    assert ["changed" in desk.told[0], "corrupt" in desk.told[1]] == [True, True]
    desk.files.write_plan(state)
    assert len(desk.told) == 2


def test_an_agent_of_somebody_else_stays_as_it_is(book: Book, desk: Desk) -> None:
    desk.put("agents/a.agent", "name: mine\n")
    state = book.tick().state
    desk.files.write_plan(state)
    (desk.place / "agents" / "b.agent").unlink()
    desk.files.write_plan(state)
    assert (desk.place / "agents" / "a.agent").read_text() == "name: mine\n"
    assert (desk.place / "agents" / "b.agent").exists()


def test_a_store_of_skills_is_made_once_and_then_left_to_people(desk: Desk) -> None:
    desk.files.take_in()
    assert "git-operations" in desk.read("skill_store.json")
    mine = {"cobol": {"type": "skill"}}
    desk.put("skill_store.json", mine)
    desk.files.take_in()
    assert desk.read("skill_store.json") == mine
    desk.put("skill_store.json", "[half")
    desk.files.take_in()
    assert "git-operations" in desk.read("skill_store.json")
    assert desk.beside("skill_store.json") == ["[half"]
    assert "corrupt" in desk.told[-1]


def test_everybody_who_worked_has_an_entry(book: Book, desk: Desk) -> None:
    desk.files.take_in()
    assert desk.read("agent_versions.json") == {}
    work(book, "a", usd=0.5)
    finish(book)
    desk.files.write_versions(book.sprint)
    found = desk.read("agent_versions.json")
    ((entry,),) = found.values()
    assert list(found) == ["a"]
    assert (entry["version"], entry["sprint_id"], entry["model"]) == ("1.0", "shop-1", "m")
    assert entry["performance"]["completion_rate"] == 1.0


def test_a_later_sprint_of_the_same_agent_keeps_the_entry_of_the_earlier_one(
    book: Book, desk: Desk
) -> None:
    for number in (1, 2):
        work(book, "a")
        finish(book)
        desk.files.write_versions(book.sprint)
        first = desk.read("agent_versions.json")["a"][0]
        assert (first["version"], first["sprint_id"]) == ("1.0", "shop-1")
        if number == 1:
            kept = first
            given = Sprint(id="shop", number=0, goal="more", given_plan=PLAN, created_at=2.0)
            book.sprint = book.ledger.create_sprint(given, {}).id
    entries = desk.read("agent_versions.json")["a"]
    assert entries[0] == kept
    assert [(e["version"], e["sprint_id"]) for e in entries] == [
        ("1.0", "shop-1"),
        ("1.1", "shop-2"),
    ]
    # A sprint that is resumed after its end has one entry still.
    desk.files.write_versions("shop-1")
    again = desk.read("agent_versions.json")["a"]
    assert [e["sprint_id"] for e in again] == ["shop-1", "shop-2"]


OLDER = {
    "a": [{"version": "1.0", "model": "balanced"}, {"version": "1.1", "model": "strong"}],
    "gone": [{"version": "1.0", "notes": 'says "hello"'}],
    "odd": "not even a list",
    "b": 5,
    "half \ud800": [],
}


def test_entries_of_others_are_never_lost_and_ours_follow_them(book: Book, desk: Desk) -> None:
    desk.put("agent_versions.json", OLDER)
    desk.files.take_in()
    assert "5 agents" in desk.told[0]
    work(book, "a")
    work(book, "b")
    finish(book)
    desk.files.write_versions(book.sprint)
    found = desk.read("agent_versions.json")
    assert found["a"][:2] == OLDER["a"]
    assert [entry["version"] for entry in found["a"]] == ["1.0", "1.1", "1.2"]
    assert (found["gone"], found["odd"]) == (OLDER["gone"], OLDER["odd"])
    assert (found["b"], found["half ?"]) == (5, [])
    # The same again changes nothing, and an edit is theirs from then on.
    desk.files.write_versions(book.sprint)
    assert desk.read("agent_versions.json") == found
    found["a"][2]["extra_instructions"] = "look twice"
    del found["gone"]
    desk.put("agent_versions.json", found)
    desk.files.take_in()
    desk.files.write_versions(book.sprint)
    after = desk.read("agent_versions.json")
    assert after["a"][:3] == found["a"]
    assert after["a"][3]["version"] == "1.3"
    assert "gone" not in after


@pytest.mark.parametrize("text", ["", "[]", "{", "3"])
def test_versions_that_make_no_sense_are_set_aside(book: Book, desk: Desk, text: str) -> None:
    desk.put("agent_versions.json", text)
    desk.files.take_in()
    assert desk.read("agent_versions.json") == {}
    assert desk.beside("agent_versions.json") == [text]


def test_files_that_say_it_already_are_not_written_again(book: Book, desk: Desk) -> None:
    state = book.tick().state
    desk.files.take_in()
    desk.files.write_plan(state)
    before = {p: p.stat().st_ino for p in desk.place.rglob("*") if p.is_file()}
    desk.files.take_in()
    desk.files.write_plan(state)
    assert {p: p.stat().st_ino for p in desk.place.rglob("*") if p.is_file()} == before
