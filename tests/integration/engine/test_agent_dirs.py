"""The folder of an agent is an export of the ledger: deleted or changed, it is written again."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from caloron.agentstate.instance import AgentInstance
from caloron.domain.model.sprint import Sprint
from caloron.engine.agent_dirs import AgentDirs, Difference, differences, export
from caloron.engine.agent_view import cycles_in, describe, last_cycles, queue_of
from caloron.ledger.ledger import Ledger
from caloron.store import queue
from caloron.store.database import open_read_only

ITEM = "demo-1/a/1-implement"
MINUTE = 60_000


class Project:
    """A ledger in which one agent, `a`, works, with a clock that a test moves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.ledger = Ledger(folder / "ledger.sqlite")
        self.ledger.create_sprint(Sprint(id="demo", number=0, goal="", phase="running"), {})
        self.messages: list[str] = []

    @property
    def agent_dir(self) -> Path:
        return self.folder / "agents" / "a"

    @property
    def dirs(self) -> AgentDirs:
        return AgentDirs(self.folder / "agents", self.ledger, "demo-1", self.messages.append)

    def export(self, agent: str = "a", *, compare: bool = False) -> None:
        with closing(open_read_only(self.ledger.db.path)) as connection:
            export(self.folder / "agents" / agent, connection, compare=compare)

    def differences(self) -> list[Difference]:
        with closing(open_read_only(self.ledger.db.path)) as connection:
            return differences(self.agent_dir, connection)

    def opening(self, agent: str = "a", item: str = ITEM) -> str:
        return self.dirs.opening(agent, item)[0]

    def input(self, item: str = ITEM) -> str:
        """The input of people in the prompt of an item."""
        return self.dirs.opening("a", item)[1]

    def wait(self, minutes: int) -> None:
        self.ledger.db.rows("UPDATE clock_offset SET ms = ms + ?", (minutes * MINUTE,))

    def begin(self, item: str = ITEM) -> int:
        """Start the process of an agent."""
        with self.ledger.db.transaction("begin") as connection:
            queue.enqueue(connection, item, "agent", "{}")
            taken = queue.claim(connection, ["agent"], holder="s", lease_ms=10**9, cap=9)
            assert taken is not None
            queue.begin_attempt(connection, taken.item, taken.token, 10**9)
        return taken.token

    def end(self, token: int, status: str = "done", item: str = ITEM) -> None:
        with self.ledger.db.transaction("end") as connection:
            queue.write_result(connection, item, token, {"exit_code": 0, "last_line": "ready"})
            queue.settle(connection, item, token, status, "merged")

    def wake(self, number: int, status: str = "done", minutes: int = 12) -> None:
        """Run a whole wake of the agent that takes some time."""
        item = f"demo-1/a/{number}-implement"
        token = self.begin(item)
        self.wait(minutes)
        self.end(token, status, item)

    def lose(self, token: int, item: str = ITEM) -> None:
        """Let the process of an agent disappear."""
        with self.ledger.db.transaction("lose") as connection:
            lost = {"token": token, "last_line": "halfway"}
            queue.append_event(connection, "attempt_lost", lost, item=item)
            queue.reopen(connection, item, "its process is gone")

    def content(self, agent: str = "a") -> Any:
        """Return every file that the export wrote."""
        agent_dir = self.folder / "agents" / agent
        with closing(open_read_only(agent_dir / "state.sqlite")) as connection:
            rows = [
                tuple(row)
                for sql in ("SELECT * FROM work_items ORDER BY id", "SELECT * FROM events")
                for row in connection.execute(sql)
            ]
        return rows, [(agent_dir / name).read_bytes() for name in ("cycle.json", "cycle.log")]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    yield made
    made.ledger.close()


def _busy_history(project: Project) -> None:
    project.wake(1)
    # Two attempts overlap: the first ends while the cycle continues.
    first, second = project.begin("demo-1/a/2-implement"), project.begin("demo-1/a/3-implement")
    project.end(first, item="demo-1/a/2-implement")
    project.end(second, item="demo-1/a/3-implement")
    project.lose(project.begin("demo-1/a/4-implement"), "demo-1/a/4-implement")
    project.begin("demo-1/a/5-implement")


def test_a_folder_has_the_times_of_the_ledger_also_when_it_is_written_again(
    project: Project,
) -> None:
    for number in (1, 2):
        project.wake(number)
        project.wait(60)
    project.export()
    first = project.content()
    for past in last_cycles(project.agent_dir, 9):
        began, ended = map(datetime.fromisoformat, (past.started_at, past.ended_at))
        assert 12 <= (ended - began).total_seconds() / 60 < 13
    for item in queue_of(project.agent_dir):
        assert 12 * MINUTE <= item["updated_at"] - item["created_at"] < 13 * MINUTE
    assert "ended as success after 12 min" in describe(project.agent_dir.parent, "a")
    with AgentInstance(project.agent_dir) as instance:
        last = instance.db.rows("SELECT max(ts) FROM events WHERE type = 'work_item_resolved'")
        week = f"{datetime.fromtimestamp(last[0][0] / 1000, UTC):%G-W%V}"
        assert instance.write_retro(week).read_text().count("| 12 min | 12 min | 12 min |") == 2
    project.wait(10_000)
    shutil.rmtree(project.agent_dir)
    project.export()
    assert project.content() == first


@pytest.mark.parametrize(
    "deleted", ["state.sqlite*", "cycle.json", "cycle.log", "cycle.*", "*", ".*.lock"]
)
def test_a_deleted_file_is_written_again_and_no_other_file_changes(
    project: Project, deleted: str
) -> None:
    _busy_history(project)
    project.export()
    first = project.content()
    for path in project.agent_dir.glob(deleted):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    project.export()
    assert project.content() == first


def test_an_export_after_every_event_equals_one_export_of_all(project: Project) -> None:
    _busy_history(project)
    project.export()
    whole = project.content()
    shutil.rmtree(project.agent_dir)
    (last,) = project.ledger.db.row("SELECT max(id) FROM events") or (0,)
    source = sqlite3.connect(project.ledger.db.path)
    for until in range(1, last + 1):
        part = sqlite3.connect(":memory:")
        source.backup(part)
        part.row_factory = sqlite3.Row
        triggers = part.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for row in triggers:
            part.execute(f"DROP TRIGGER {row['name']}")
        part.execute("DELETE FROM events WHERE id > ?", (until,))
        export(project.agent_dir, part)
        part.close()
    source.close()
    assert project.content() == whole


def test_an_export_that_is_killed_at_any_write_is_completed_by_the_next(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    _busy_history(project)
    project.export()
    expected = project.content()
    points = ("export.before_commit", "file.temp", "file.rename", "export.after_commit")
    for point in points:
        for number in (1, 2):
            shutil.rmtree(project.agent_dir)
            reached = 0

            def killed(name: str, *_of: str, point: str = point, number: int = number) -> None:
                nonlocal reached
                reached += name == point
                if name == point and reached == number:
                    raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr("caloron.store.database.crashpoint", killed)
                patch.setattr("caloron.store.files.crashpoint", killed)
                with suppress(KeyboardInterrupt):
                    project.export()
                assert reached
            project.export()
            assert project.content() == expected, (point, number)


def test_a_reviewer_is_exported_from_the_work_of_all_tasks(project: Project) -> None:
    for task in ("other0", "other1"):
        for work in ("1-implement", "2-review"):
            item = f"demo-1/{task}/{work}"
            project.end(project.begin(item), item=item)
    project.export("reviewer-1")
    first = project.content("reviewer-1")
    assert len(queue_of(project.folder / "agents" / "reviewer-1")) == 2
    shutil.rmtree(project.folder / "agents")
    project.export("reviewer-1")
    assert project.content("reviewer-1") == first


def test_an_agent_that_wakes_needs_no_other_folder_and_knows_its_last_cycle(
    project: Project,
) -> None:
    assert project.opening() == ""
    project.wake(1, minutes=90)
    item = "demo-1/other/1-implement"
    project.end(project.begin(item), item=item)
    project.wake(2)
    assert "this is your cycle 3." in project.opening()
    assert [path.name for path in project.agent_dir.parent.iterdir()] == ["a"]
    (_, past) = last_cycles(project.agent_dir, 9)
    assert (past.status, past.result) == ("ended", "success"), "90 minutes are not a crash"


def test_manual_changes_are_reported_and_overwritten_except_files_of_people(
    project: Project,
) -> None:
    at_work, waiting = "demo-1/a/2-implement", "demo-1/a/3-implement"
    project.wake(1)
    project.begin(at_work)
    project.lose(project.begin(waiting), waiting)
    assert project.differences() == []
    project.export()
    assert project.differences() == []
    expected = project.content()[1]
    with AgentInstance(project.agent_dir) as instance:
        instance.work_items.reopen(ITEM)
        instance.db.rows("UPDATE work_items SET status = 'failed' WHERE id != ?", (ITEM,))
        instance.work_items.enqueue("my own", "note", {})
    (project.agent_dir / "cycle.json").write_text("{}")
    differences = {difference.target: difference.found for difference in project.differences()}
    assert differences == {
        ITEM: "pending", at_work: "failed", waiting: "failed", "cycle.json": "other content"
    }  # fmt: skip
    project.export(compare=True)
    assert project.differences() == []
    assert project.content()[1] == expected
    statuses = {item["id"]: item["status"] for item in queue_of(project.agent_dir)}
    assert statuses == {
        ITEM: "done", at_work: "in_flight", waiting: "pending", "my own": "pending"
    }  # fmt: skip


@pytest.mark.parametrize("damage", ["garbage", "DROP TABLE caloron_leases", "other ledger"])
def test_an_unusable_database_is_set_aside_and_written_again(
    project: Project, damage: str, tmp_path: Path
) -> None:
    project.wake(1)
    project.export()
    expected = project.content()
    file = project.agent_dir / "state.sqlite"
    if damage == "garbage":
        file.write_bytes(b"no database" * 100)
        (difference,) = project.differences()
        assert difference.target == "state.sqlite"
    elif damage == "other ledger":
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("UPDATE caloron_export SET through = 1000")
    else:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute(damage)
            connection.execute("UPDATE caloron_export SET through = 0, seq = -1")
    project.export()
    assert project.content() == expected
    assert len(list(project.agent_dir.glob("state.sqlite.*-*[0-9]"))) == 1


def test_a_folder_of_version_0_4_continues_without_repeated_entries(project: Project) -> None:
    project.wake(1)
    project.export()
    with closing(sqlite3.connect(project.agent_dir / "state.sqlite")) as connection:
        connection.execute("CREATE TABLE caloron_followed (id INTEGER, through INTEGER, cycle)")
        connection.execute("INSERT INTO caloron_followed SELECT 1, through, 1 FROM caloron_export")
        connection.execute("DROP TABLE caloron_export")
        connection.commit()
        (before,) = connection.execute("SELECT count(*) FROM events").fetchone()
    project.export()
    assert len(project.content()[0]) == before + 1, "five events and one work item"
    assert cycles_in(project.agent_dir).load().state.cycle_number == 1


def test_a_folder_that_cannot_be_written_is_reported_once_and_stops_nothing(
    project: Project,
) -> None:
    (project.folder / "agents").write_text("in the way")
    project.wake(1)
    dirs = project.dirs
    assert dirs.opening("a", ITEM) == dirs.opening("a", ITEM) == ("", "")
    dirs.export_sprint(pages=True)
    assert len(project.messages) == 1


def test_files_of_people_are_in_the_prompt_and_placeholders_are_not(project: Project) -> None:
    assert project.input() == ""
    (project.agent_dir / "persona.md").write_text("You are patient.")
    (project.agent_dir / "context" / "repos.md").write_text("tests: make check")
    (project.agent_dir / "context" / "huge.md").write_text("x" * 100_000)
    (project.agent_dir / "context" / "linked.md").symlink_to("/etc/passwd")
    text = project.input()
    assert "## persona.md\nYou are patient." in text
    assert "## context/repos.md\ntests: make check" in text
    assert "channels" not in text
    assert "root:" not in text
    assert len(text) < 5_000
    assert (project.agent_dir / "persona.md").read_text() == "You are patient."


def _errand(project: Project, name: str) -> tuple[str, str | None]:
    with AgentInstance(project.agent_dir) as instance:
        errand = instance.work_items.get(name)
        return errand.status, errand.notes


def test_an_errand_is_handed_over_once_and_resolved_with_the_work(project: Project) -> None:
    with AgentInstance(project.agent_dir) as instance:
        instance.work_items.enqueue("tidy", "chore", {"do": "tidy the docs"}, notes="please")
        instance.work_items.enqueue("later", "chore", {}, delay_ms=10**9)
        instance.work_items.enqueue("asked", "chore", {}, status="waiting_human")
    token = project.begin()
    text = project.input()
    assert '## WorkItem tidy (chore)\n{"do":"tidy the docs"}\ntext: please' in text
    assert "later" not in text
    assert "asked" not in text
    status, notes = _errand(project, "tidy")
    assert (status, json.loads(notes or "")["handed_to"]) == ("in_flight", ITEM)
    assert "tidy" not in project.input("demo-1/a/2-implement"), "the errand is not for another item"
    assert "tidy" in project.input(), "another attempt at the same item gets the errand"
    project.end(token)
    project.export()
    status, notes = _errand(project, "tidy")
    assert (status, json.loads(notes or "")["resolution"]) == ("done", f"{ITEM} ended as done")


def test_an_errand_of_work_that_failed_waits_for_the_next_prompt(project: Project) -> None:
    with AgentInstance(project.agent_dir) as instance:
        instance.work_items.enqueue("tidy", "chore", {})
    token = project.begin()
    assert "tidy" in project.input()
    project.end(token, "failed")
    project.export()
    assert _errand(project, "tidy")[0] == "pending"
    assert "tidy" in project.input("demo-1/a/2-implement")


def test_errands_beyond_the_size_of_a_prompt_wait_for_the_next_one(project: Project) -> None:
    with AgentInstance(project.agent_dir) as instance:
        for number in range(9):
            instance.work_items.enqueue(f"e{number}", "chore", {"text": "x" * 3_900})
    project.begin()
    text = project.input()
    assert len(text) <= 12_000
    statuses = [_errand(project, f"e{number}")[0] for number in range(9)]
    assert statuses == ["in_flight"] * 3 + ["pending"] * 6
