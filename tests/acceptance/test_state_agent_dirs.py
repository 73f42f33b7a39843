"""The folders of agents in `state`: shown, compared with the ledger, backed up and restored."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from caloron.agentstate.instance import AgentInstance
from caloron.engine.agent_view import cycles_in
from tests.acceptance.test_state import HomeCopy, filled, home_copy
from tests.support.home import Home, task, writes

__all__ = ("filled", "home_copy")


@pytest.fixture
def agent(home_copy: HomeCopy) -> Path:
    """The folder of `a`, with files and an errand of a person."""
    folder = home_copy.project / "agents" / "a"
    (folder / "persona.md").write_text("patient")
    (folder / "context" / "repos.md").write_text("tests: make check")
    (folder / "notes" / "deep").mkdir(parents=True)
    (folder / "notes" / "deep" / "by hand.txt").write_bytes(b"\xff\0 mine")
    with AgentInstance(folder) as home:
        home.work_items.enqueue("mine", "chore", {"do": "tidy"}, notes="by me")
        home.events.append("note", {"text": "mine"})
        home.regenerate_dashboard()
    return folder


MINE = ("persona.md", "context/repos.md", "notes/deep/by hand.txt")


def _mine(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in MINE}


def _errands(folder: Path) -> dict[str, str]:
    with closing(sqlite3.connect(folder / "state.sqlite")) as connection:
        return dict(connection.execute("SELECT id, status FROM work_items"))


def test_show_lists_the_files_of_agents(home_copy: HomeCopy, agent: Path) -> None:
    rows = {f["path"]: f for f in home_copy.caloron("show").data["files"]}
    for name in (*MINE, "state.sqlite", "cycle.json"):
        assert rows[str(agent / name)]["whose"] == "agent"
    assert not any(name.endswith((".lock", "-wal", "-shm")) for name in rows)


def test_a_damaged_folder_is_exported_again_and_files_of_people_stay(
    home_copy: HomeCopy, agent: Path
) -> None:
    good, facts, mine = _errands(agent), home_copy.facts(), _mine(agent)
    cycle = cycles_in(agent).load().state
    assert home_copy.deviations() == []
    for name in ("state.sqlite", "cycle.json", "dashboard.md"):
        (agent / name).write_bytes(b"garbage \xff" * 100)
    assert home_copy.deviations() == [str(agent / "state.sqlite")]
    assert home_copy.caloron("verify", "--repair", "--dry-run").code == 9
    answer = home_copy.verify("--repair")
    assert answer["deviations"] == []
    assert len(answer["repaired"]) == 1
    # The operator's work items were in that file alone, which is kept.
    assert _errands(agent) == {item: status for item, status in good.items() if item != "mine"}
    assert len(list(agent.glob("state.sqlite.corrupt-*[0-9]"))) == 1
    again = cycles_in(agent).load().state
    assert (again.cycle_number, again.status) == (cycle.cycle_number, cycle.status)
    assert (_mine(agent), home_copy.facts()) == (mine, facts)
    assert home_copy.verify("--repair")["repaired"] == []


def test_a_changed_page_or_work_item_is_reported_and_repaired(
    home_copy: HomeCopy, agent: Path
) -> None:
    page, good = agent / "dashboard.md", _errands(agent)
    text = page.read_text()
    page.write_text(text.replace("| chore | 1 |", "| chore | 7 |"))
    assert page.read_text() != text
    assert home_copy.deviations() == [str(page)]
    item = next(item for item, status in good.items() if status == "done")
    with AgentInstance(agent) as home:
        home.work_items.reopen(item, "by hand")
    deviations = {
        d["target"]: (d["expected"], d["found"]) for d in home_copy.verify()["deviations"]
    }
    assert deviations[f"{agent / 'state.sqlite'}, {item}"] == ("done", "pending")
    assert home_copy.verify("--repair")["deviations"] == []
    assert _errands(agent) == good
    with AgentInstance(agent) as home:
        home.events.append("note", {"text": "later"})
    # A page that is only behind its queue is no error.
    report = home_copy.verify()
    assert [note["target"] for note in report["notes"]] == [str(page)]


def test_a_missing_folder_and_an_unknown_folder_are_no_deviations(
    home_copy: HomeCopy, agent: Path
) -> None:
    shutil.rmtree(home_copy.project / "agents" / "b")
    (home_copy.project / "agents" / "unknown").mkdir()
    (home_copy.project / "agents" / "linked").symlink_to(agent)
    (home_copy.project / "agents" / "readme.txt").write_text("a file")
    assert home_copy.deviations() == []


def test_a_backup_brings_back_everything_that_only_the_folder_has(
    home_copy: HomeCopy, agent: Path
) -> None:
    mine, errands = _mine(agent), _errands(agent)
    cycle, page = cycles_in(agent).load().state, (agent / "dashboard.md").read_bytes()
    made = home_copy.root / "homes.tar"
    answer = home_copy.caloron("backup", str(made))
    parts = {part["name"] for part in answer.data["parts"]}
    assert {f"agents/a/{name}" for name in (*MINE, "state.sqlite", "cycle.log")} <= parts
    assert not any(name.endswith(("-wal", "-shm", ".lock")) for name in parts)
    shutil.rmtree(home_copy.home)
    assert home_copy.caloron("restore", str(made), "--dry-run").code == 9
    assert home_copy.caloron("restore", str(made)).code == 0
    assert (_mine(agent), _errands(agent)) == (mine, errands)
    assert cycles_in(agent).load().state == cycle
    assert (agent / "dashboard.md").read_bytes() == page
    assert home_copy.verify()["deviations"] == []
    with AgentInstance(agent) as home:
        assert home.work_items.get("mine").notes == "by me"
        assert home.events.since(0)[-1].payload == '{"text":"mine"}'


def test_files_that_a_backup_cannot_contain_are_named_and_left_out(
    home_copy: HomeCopy, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (agent / "state.sqlite").write_bytes(b"garbage" * 100)
    (agent / "link.md").symlink_to("/etc/passwd")
    (agent / os.fsdecode(b"\xff.txt")).write_bytes(b"x")
    (agent / "token.md").write_text("hunter2-is-my-token-1234567890")
    monkeypatch.setenv("CALORON_TOKEN", "hunter2-is-my-token-1234567890")
    config = home_copy.project / "config.yml"
    config.write_text(config.read_text().replace("token_env: ''", "token_env: CALORON_TOKEN"))
    with (agent / "huge.bin").open("wb") as file:
        file.truncate((16 << 20) + 1)
    made = home_copy.root / "rest.tar"
    answer = home_copy.caloron("backup", str(made))
    assert answer.code == 0, answer
    listed = "\n".join(answer.data["left_out"])
    for name in ("state.sqlite", "huge.bin", "\\udcff", "token.md"):
        assert f"agents/a/{name}" in listed, (name, listed)
    with tarfile.open(made) as tar:
        names = tar.getnames()
    assert "agents/a/persona.md" in names
    assert not any(name.endswith(("link.md", "token.md", "huge.bin")) for name in names)
    assert b"hunter2-is" not in made.read_bytes()


def test_the_log_of_a_damaged_file_is_kept_with_it(home_copy: HomeCopy, agent: Path) -> None:
    with closing(sqlite3.connect(agent / "state.sqlite")) as reader:
        # An open reader: the rows written now stay in the log.
        reader.execute("SELECT count(*) FROM work_items").fetchone()
        with AgentInstance(agent) as home:
            home.work_items.enqueue("only in the log", "chore", {})
        whole = (agent / "state.sqlite-wal").read_bytes()
        assert b"only in the log" in whole
        shutil.copyfile(agent / "state.sqlite-wal", home_copy.root / "wal")
    shutil.copyfile(home_copy.root / "wal", agent / "state.sqlite-wal")
    (agent / "state.sqlite").write_bytes(b"garbage" * 600)
    assert home_copy.verify("--repair")["deviations"] == []
    kept = [f.read_bytes() for f in agent.glob("state.sqlite.corrupt-*-wal")]
    assert kept == [whole]


def test_a_repair_reports_only_what_it_repaired_and_continues_after_an_error(
    home_copy: HomeCopy, agent: Path
) -> None:
    number = cycles_in(agent).load().state.cycle_number
    (agent / "cycle.json").write_bytes(b"")
    (agent / "cycle.log").unlink()
    (agent / "dashboard.md").unlink()
    (agent / "dashboard.md").mkdir()
    answer = home_copy.caloron("verify", "--repair")
    assert answer.code == 8
    left = answer.json["data"]
    assert [deviation["target"] for deviation in left["deviations"]] == [
        str(agent / "dashboard.md")
    ]
    assert len(set(left["repaired"])) == len(left["repaired"]) >= 1
    assert f"not repaired: {agent / 'dashboard.md'}" in answer.stderr
    assert cycles_in(agent).load().state.cycle_number >= number


def test_any_payload_of_an_event_is_shown_and_stops_no_sprint(home: Home) -> None:
    home.script(writes("a"))
    assert home.sprint(task("a")).code == 0
    folder = home.project() / "agents" / "a"
    with closing(sqlite3.connect(folder / "state.sqlite", isolation_level=None)) as connection:
        for payload in ('"seen"', "1", "null", "[1]", "plain\ntext", b"\xff"):
            connection.execute(
                "INSERT INTO events (ts, type, payload) VALUES (?, 'note', ?)", (2**42, payload)
            )
        connection.execute(
            "INSERT INTO work_items VALUES (x'ff', 'k', '{}', 'pending', NULL, 'abc', 'abc', NULL)"
        )
    assert home.caloron("agents", "show", "a").code == 0
    assert home.caloron("state", "verify").code == 0
    assert home.sprint(task("a")).code == 0
    shown = home.caloron("agents", "show", "a", json=False).stdout
    assert "- note plain text" in shown
