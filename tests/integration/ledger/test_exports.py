"""Exported files: in the shapes that scripts know, and no text of another program is lost."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from caloron.domain.model.feedback import Feedback
from caloron.domain.model.sprint import Planning, Sprint, SprintSettings
from caloron.domain.model.status import Status, Step
from caloron.domain.rules.people.state_file_edit import apply_file_edit
from caloron.engine.exports import Exports, SprintExports, exported_files
from caloron.errors import NotFound, StoreError
from caloron.ledger.exports import digest
from caloron.ledger.learnings import context_for
from caloron.ledger.ledger import TickCommit
from caloron.ledger.legacy import find_legacy_sprint, import_home, legacy_sprints
from caloron.ledger.projects import Project
from caloron.ledger.run_history import find_sprint, read_kept
from caloron.ledger.settings import ProjectConfig
from caloron.ledger.state_file import kv_path, kv_text, parse_edit, write_kv
from caloron.store.database import open_read_only
from tests.integration.ledger.conftest import PLAN, Book


class Clock:
    def now(self) -> float:
        return 200.0


class Desk:
    """The files of a project whose ledger is the book's own."""

    def __init__(self, book: Book, path: Path) -> None:
        (path / "ledger.sqlite").symlink_to("ledger.db")
        self.book = book
        self.project = Project("shop", path, ProjectConfig(name="shop", framework="stub"))
        self.exports = Exports(self.project, book.ledger)
        self.messages: list[str] = []
        self.open()

    def open(self) -> None:
        args = (self.project, self.book.ledger, self.book.sprint, Clock())
        self.files = SprintExports(*args, self.messages.append)

    def path(self, name: str) -> Path:
        if name == "state":
            return kv_path(self.book.sprint)
        folder = self.project.path if name == "sprints.json" else self.project.workspace
        return folder / name

    def read(self, name: str) -> Any:
        return json.loads(self.path(name).read_bytes())

    def put(self, name: str, content: Any) -> None:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))

    def aside(self, name: str, kind: str = "*") -> list[str]:
        path = self.path(name)
        return [p.read_text() for p in sorted(path.parent.glob(f"{path.name}.{kind}-*"))]

    def kept(self) -> Any:
        return self.book.read(read_kept)

    def next_sprint(self) -> None:
        more = Sprint(
            id="shop",
            number=0,
            goal="more",
            planning=Planning(given_plan=PLAN),
            settings=SprintSettings(created_at=5.0),
        )
        self.book.sprint = self.book.ledger.create_sprint(more, {}).id
        self.open()


@pytest.fixture
def desk(book: Book, tmp_path: Path) -> Desk:
    return Desk(book, tmp_path)


def work(book: Book, task: str) -> None:
    item = f"{book.sprint}/{task}/1-implement"
    token = book.begin(item, "implement")
    book.end(item, token)
    book.report(item, token=token, framework="stub", model="m", usd=0.5)


def commit_state_file(book: Book, now: float = 100.0) -> bytes:
    """Commit a tick with its file, as the loop does."""
    loaded = book.load()
    decision = book.decide(loaded, now)
    text = kv_text(decision.state, now)
    book.ledger.commit_tick(
        loaded,
        TickCommit(state=decision.state, actions=decision.actions, state_file_digest=digest(text)),
    )
    write_kv(book.sprint, text)
    return text


def end_sprint(desk: Desk, **of_task: Any) -> None:
    desk.book.finish(**of_task)
    desk.files.write_end()


# All files


def test_every_exported_file_is_backed_up(desk: Desk) -> None:
    commit_state_file(desk.book)
    desk.files.read_edits(busy=False)
    desk.files.write_plan(desk.book.load().state)
    work(desk.book, "a")
    end_sprint(desk)
    exports = list(desk.exports.all())
    assert {export.path for export in exports} == set(
        exported_files(desk.project, [desk.book.sprint]).values()
    )
    assert len(exports) == 10
    # Ticks write the state file.
    for export in exports[1:]:
        assert export.path.read_bytes() == export.text(), export.name


def test_files_without_changes_are_not_written_again(desk: Desk) -> None:
    def write() -> None:
        desk.files.read_edits(busy=False)
        desk.open()
        desk.files.write_plan(desk.book.load().state)

    commit_state_file(desk.book)
    desk.book.tick()
    write()
    inodes = {p: p.stat().st_ino for p in desk.project.workspace.rglob("*") if p.is_file()}
    write()
    assert {p: p.stat().st_ino for p in inodes} == inodes
    assert desk.messages == []


def test_a_deleted_file_is_written_again(desk: Desk) -> None:
    desk.files.read_edits(busy=False)
    names = ("state", "sprints.json", "agent_versions.json", "skill_store.json")
    before = [desk.read(name) for name in names]
    for name in names:
        desk.path(name).unlink()
    desk.files.read_edits(busy=False)
    assert [desk.read(name) for name in names] == before


@pytest.mark.parametrize("name", ["sprints.json", "agent_versions.json", "dag.json"])
def test_a_text_of_another_program_is_kept_aside_with_a_message(desk: Desk, name: str) -> None:
    state = desk.book.tick().state
    for text, kind in (('[{"id": "old"}]', "foreign"), ("{half", "corrupt")):
        desk.put(name, text)
        desk.open()
        desk.messages.clear()
        desk.files.read_edits(busy=False)
        desk.files.write_plan(state)
        assert desk.aside(name, kind) == [text]
        assert any(str(desk.path(name)) in message for message in desk.messages)
        desk.read(name)


def test_a_folder_instead_of_a_file_is_an_error(desk: Desk) -> None:
    desk.path("learnings.json").mkdir(parents=True)
    with pytest.raises(StoreError, match="cannot be used"):
        desk.files.read_edits(busy=False)
    assert desk.path("learnings.json").is_dir()


# The plan, the agents, the skills


def test_the_plan_is_written_as_a_list_of_tasks(desk: Desk) -> None:
    desk.files.write_plan(desk.book.tick().state)
    assert desk.read("dag.json")[1] == {
        "id": "b",
        "title": "Title of b",
        "depends_on": ["a"],
        "agent_prompt": "Do b",
        "framework": "stub",
    }
    manifest = yaml.safe_load(desk.path("agents/a.agent").read_text())
    assert (manifest["name"], manifest["version"]) == ("caloron-agent-a", "1.0.0")


def test_an_edited_skill_store_stays_and_a_corrupt_one_is_replaced(desk: Desk) -> None:
    desk.files.read_edits(busy=False)
    assert "git-operations" in desk.read("skill_store.json")
    desk.put("skill_store.json", {"cobol": {"type": "skill"}})
    desk.files.read_edits(busy=False)
    assert desk.read("skill_store.json") == {"cobol": {"type": "skill"}}
    desk.put("skill_store.json", "[half")
    desk.files.read_edits(busy=False)
    assert "git-operations" in desk.read("skill_store.json")
    assert desk.aside("skill_store.json") == ["[half"]


def test_each_agent_has_one_version_per_sprint(desk: Desk) -> None:
    for _ in range(2):
        work(desk.book, "a")
        end_sprint(desk)
        desk.next_sprint()
    versions = desk.read("agent_versions.json")["a"]
    assert [(v["version"], v["sprint_id"], v["model"]) for v in versions] == [
        ("1.0", "shop-1", "m"),
        ("1.1", "shop-2", "m"),
    ]
    assert versions[0]["performance"]["completion_rate"] == 1.0
    desk.book.sprint = "shop-1"
    desk.open()
    desk.files.write_end()
    again = desk.read("agent_versions.json")["a"]
    assert [v["sprint_id"] for v in again] == ["shop-1", "shop-2"]


# The history


def test_a_sprint_is_recorded_with_its_results_and_again_when_they_change(desk: Desk) -> None:
    end_sprint(desk, feedback=Feedback(task_clarity=2, blockers=("no price",)))
    (record,) = desk.read("sprints.json")["sprints"]
    assert (record["sprint_id"], record["id"], record["exit_code"]) == (1, "shop-1", 0)
    assert (record["total_tasks"], record["completed_tasks"], record["failed_tasks"]) == (2, 2, 0)
    assert (record["avg_clarity"], record["blockers"]) == (2.0, ["no price"])
    state = desk.book.load().state
    state.tasks["b"].step = Step.ESCALATED
    desk.book.commit_state(state)
    desk.files.write_end()
    (record,) = desk.read("sprints.json")["sprints"]
    assert (record["completed_tasks"], record["exit_code"]) == (1, 10)


def test_the_next_sprint_records_a_sprint_that_crashed_at_its_end(desk: Desk) -> None:
    desk.book.finish()
    desk.next_sprint()
    end_sprint(desk)
    assert [r["id"] for r in desk.read("sprints.json")["sprints"]] == ["shop-1", "shop-2"]


# The home of the older program

OLDER: list[dict[str, Any]] = [
    {"sprint_id": 1, "goal": 'a "cart"', "exit_code": 1, "duration_s": 0},
    {
        "sprint_id": 2,
        "goal": "pay",
        "exit_code": 0,
        "total_tasks": 2,
        "completed_tasks": 1,
        "failed_tasks": 1,
        "avg_clarity": 5.5,
        "note_of_a_person": {"kept": True},
    },
    {"sprint_id": 2, "goal": "pay again", "exit_code": 0, "total_tasks": 1, "completed_tasks": 1},
]
OLDER_AGENTS = {
    "a": [{"version": "1.0", "model": "balanced"}, {"version": "1.1", "model": "strong"}],
    "odd": "not even a list",
    "b": 5,
    "half \ud800": [],
}


@pytest.fixture
def older(desk: Desk) -> Desk:
    """A desk in the home of the older program, before the first sprint."""
    desk.book.ledger.db.rows("DELETE FROM sprints")
    desk.put("sprints.json", {"sprints": OLDER})
    desk.put("agent_versions.json", OLDER_AGENTS)
    return desk


def test_an_older_home_is_imported_once_and_its_files_are_kept_aside(older: Desk) -> None:
    (message,) = import_home(older.book.ledger, older.project)
    assert "3 sprints and 4 agents" in message
    older.next_sprint()
    assert older.book.sprint == "shop-4"
    commit_state_file(older.book)
    older.files.read_edits(busy=False)
    assert older.aside("sprints.json", "foreign") == [json.dumps({"sprints": OLDER})]
    assert older.aside("agent_versions.json", "foreign") == [json.dumps(OLDER_AGENTS)]
    records = older.read("sprints.json")["sprints"]
    assert [r["sprint_id"] for r in records] == [1, 2, 3]
    assert all(r["adopted"] for r in records)
    assert records[1]["note_of_a_person"] == {"kept": True}
    assert records[2]["recorded_id"] == 2
    # Files at a second import are kept aside like any other text.
    older.put("sprints.json", {"sprints": [{"sprint_id": 9, "goal": "late"}]})
    assert import_home(older.book.ledger, older.project) == []
    older.files.read_edits(busy=False)
    assert older.read("sprints.json")["sprints"] == records


def test_new_versions_of_agents_follow_the_imported_versions(older: Desk) -> None:
    import_home(older.book.ledger, older.project)
    older.next_sprint()
    work(older.book, "a")
    work(older.book, "b")
    end_sprint(older)
    versions = older.read("agent_versions.json")
    assert versions["a"][:2] == OLDER_AGENTS["a"]
    assert [v["version"] for v in versions["a"]] == ["1.0", "1.1", "1.2"]
    assert (versions["odd"], versions["b"], versions["half ?"]) == ("not even a list", 5, [])


def test_reading_commands_have_the_same_result_before_and_after_the_import(older: Desk) -> None:
    project = older.project
    with closing(open_read_only(project.ledger)) as connection:
        before = legacy_sprints(project, connection)
        assert legacy_sprints(project, None) == before
        import_home(older.book.ledger, project)
        assert legacy_sprints(project, connection) == before
        assert legacy_sprints(project, connection, 1).sprints == before.sprints[:1]
        assert before.total == 3
        for name in ("2", "#2", "shop-2"):
            sprint = find_legacy_sprint(project, connection, name)
            assert sprint is not None
            assert sprint.record["goal"] == "pay"
        for name in ("9", "shop-x", "other-2", "1" * 30):
            assert find_legacy_sprint(project, connection, name) is None
        with pytest.raises(NotFound) as refused:
            find_sprint(connection, "2")
        assert "caloron show 2" in refused.value.hint
        kept = read_kept(connection)
        assert [record.id for record in kept.sprints] == ["shop-1", "shop-2", "shop-3"]


@pytest.mark.parametrize("text", ["", "{", "[3", '{"sprints": 3}', '{"sprints": [{"goal'])
def test_a_corrupt_history_of_the_older_program_is_kept_aside(older: Desk, text: str) -> None:
    older.put("sprints.json", text)
    with closing(open_read_only(older.project.ledger)) as connection:
        assert "cannot be read" in legacy_sprints(older.project, connection).problem
    assert "corrupt" in import_home(older.book.ledger, older.project)[0]
    assert older.aside("sprints.json", "corrupt") == [text]


def test_an_empty_history_of_the_older_program_is_replaced_silently(desk: Desk) -> None:
    desk.put("sprints.json", '{"sprints":   []}')
    assert import_home(desk.book.ledger, desk.project) == []
    commit_state_file(desk.book)
    desk.files.read_edits(busy=False)
    assert (desk.messages, desk.aside("sprints.json")) == ([], [])


# The state file


def test_a_crash_between_commit_and_write_is_no_edit(desk: Desk) -> None:
    first = commit_state_file(desk.book, now=100.0)
    commit_state_file(desk.book, now=200.0)
    kv_path(desk.book.sprint).write_bytes(first)
    desk.files.read_edits(busy=False)
    assert desk.book.events("state_imported") == 0
    assert desk.aside("state") == []


def test_an_invalid_edit_of_the_state_file_changes_nothing_and_is_reported(desk: Desk) -> None:
    end_sprint(desk)
    desk.files.read_edits(busy=False)
    content = desk.read("state")
    content["state"]["tasks"]["a"]["status"] = "Pending"
    content["state"]["tasks"]["ghost"] = content["state"]["tasks"]["b"]
    desk.put("state", content)
    desk.files.read_edits(busy=False)
    assert any("a: Done → Pending cannot be done by hand" in m for m in desk.messages)
    assert any("ghost: no such task" in m for m in desk.messages)
    assert desk.book.load().state.tasks["a"].status is Status.DONE
    assert list(desk.read("state")["state"]["tasks"]) == ["a", "b"]


@pytest.mark.parametrize("count", [3, {"count": 3}], ids=["older program", "ours"])
def test_interventions_may_be_set_by_agent_in_either_form(desk: Desk, count: Any) -> None:
    commit_state_file(desk.book)
    content = desk.read("state") | {"interventions": {"a": count, "ghost": 4}}
    outcome = apply_file_edit(
        desk.book.load().state, parse_edit(json.dumps(content).encode()), 200.0
    )[1]
    assert outcome == {"a": "interventions set to 3"}


def test_a_sprint_id_that_leaves_its_folder_is_refused() -> None:
    with pytest.raises(Exception, match="sprint"):
        kv_path("../../etc/passwd")


# Learnings and the retro's page

LEARNINGS = {
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
    "last_po_context": "earlier context",
}


def test_learnings_follow_the_ledger(desk: Desk) -> None:
    end_sprint(desk, feedback=Feedback(task_clarity=2))
    before = desk.read("learnings.json")
    assert before["sprints"][0]["avg_clarity"] == 2.0
    assert [i["rule"] for i in before["improvements"]] == ["task-clarity"]
    end_sprint(desk, feedback=Feedback(task_clarity=9))
    (sprint,) = desk.read("learnings.json")["sprints"]
    assert (sprint["avg_clarity"], desk.read("learnings.json")["improvements"]) == (9.0, [])


def test_a_planner_gets_stored_learnings_of_earlier_sprints_only(desk: Desk) -> None:
    desk.book.finish(feedback=Feedback(task_clarity=2))
    assert context_for(desk.book.ledger, desk.book.sprint) == ""
    context = context_for(desk.book.ledger, "shop-2")
    assert "shop-1: 2/2 tasks done, clarity 2.0/10" in context
    desk.files.write_end()
    assert desk.read("learnings.json")["last_po_context"] == context
    (improvement,) = desk.read("learnings.json")["improvements"]
    assert (improvement["status"], improvement["applied_in"]) == ("applied", ["shop-2"])


def test_learnings_of_the_older_program_are_imported_in_every_form(desk: Desk) -> None:
    desk.put("learnings.json", LEARNINGS)
    desk.files.read_edits(busy=False)
    kept = desk.kept()
    assert [s.id for s in kept.sprints] == ["before-1", "before-2", "before-2-again"]
    assert kept.sprints[0].blockers == ('say "please"', "Review cycle 1: no tests", "7")
    assert kept.sprints[0].kpis.total_interventions == 2
    context = context_for(desk.book.ledger, desk.book.sprint)
    assert "low clarity" in context
    assert "before-2-again: 0/1 tasks done" in context
    end_sprint(desk)
    ids = [s["sprint_id"] for s in desk.read("learnings.json")["sprints"]]
    assert ids == [*(s.id for s in kept.sprints), "shop-1"]


def test_our_own_learnings_read_back_change_nothing(desk: Desk) -> None:
    desk.put("learnings.json", LEARNINGS)
    end_sprint(desk, feedback=Feedback(task_clarity=2))
    kept, content = desk.kept(), desk.read("learnings.json")
    desk.put("learnings.json", json.dumps(content, indent=3))
    desk.files.write_end()
    assert (desk.kept(), desk.read("learnings.json")) == (kept, content)


def test_a_person_may_add_and_retire_improvements(desk: Desk) -> None:
    end_sprint(desk, feedback=Feedback(task_clarity=2))
    content = desk.read("learnings.json")
    content["improvements"][0]["status"] = "retired"
    content["improvements"].append("Never touch the billing code")
    content["sprints"][0]["completed"] = 77
    desk.put("learnings.json", content)
    desk.files.write_end()
    context = context_for(desk.book.ledger, "shop-2")
    assert "Never touch the billing code" in context
    assert "Write clearer tasks" not in context
    # The results of our own sprints come from the ledger.
    assert desk.read("learnings.json")["sprints"][0]["completed"] == 2


def test_learnings_changed_while_agents_work_are_kept_aside(desk: Desk) -> None:
    desk.put("learnings.json", LEARNINGS)
    desk.files.read_edits(busy=True)
    assert desk.aside("learnings.json", "foreign") == [json.dumps(LEARNINGS)]
    assert desk.kept().sprints == ()


_CORRUPT = {
    "state": ("", "{", "[]", '{"state": 3}', "null"),
    "learnings.json": (
        "", "{", "[]", "3", '{"sprints": 3}', '{"improvements": {}}', "[" * 100_000, "\x00\x00",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "text"), [(n, t) for n, texts in _CORRUPT.items() for t in texts])
def test_a_corrupt_managed_file_is_kept_aside(desk: Desk, name: str, text: str) -> None:
    commit_state_file(desk.book)
    before = desk.read("state")["state"]
    desk.put(name, text)
    desk.files.read_edits(busy=False)
    assert desk.aside(name, "corrupt") == [text]
    assert desk.book.events("state_file_set_aside") == 1
    assert desk.read("state")["state"] == before


def test_a_sprint_without_tasks_has_a_retro_page(desk: Desk) -> None:
    state = desk.book.load().state
    sprint = state.sprint.copy()
    sprint.phase, sprint.ended_at, sprint.planning.failure = "ended", 5.0, "main is <red>"
    desk.book.commit_state(msgspec.structs.replace(state, sprint=sprint))
    desk.files.write_end()
    page = desk.path("retro_report.md").read_text()
    assert "**stopped**: main is &lt;red>" in page
    assert "0 of 0 tasks done" in page
    assert desk.path(f"retro/sprint-{desk.book.sprint}.md").read_text() == page


def test_text_of_agents_is_escaped_in_the_retro_page(desk: Desk) -> None:
    evil = "\x1b[31m <script>alert(1)</script> | [x](javascript:1) `"
    end_sprint(desk, step=Step.ESCALATED, reason=evil)
    page = desk.path("retro_report.md").read_text()
    assert "alert(1)" in page.partition("## Themes")[2].partition("\n## ")[0]
    for markup in ("\x1b", "<script", "[x]("):
        assert markup not in page
