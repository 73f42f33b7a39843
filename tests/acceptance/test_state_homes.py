"""The homes of agents are part of what is kept: shown, compared, copied and put back."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from caloron.agentstate.home import AgentHome
from caloron.engine.home_view import cycles_in
from tests.acceptance.home import Home, task, writes
from tests.acceptance.test_state import Place, filled, made_of, place, tree

__all__ = ("filled", "place")


@pytest.fixture
def agent(place: Place) -> Path:
    """The home of `a`, with what its operator put there."""
    where = place.project / "agents" / "a"
    (where / "persona.md").write_text("patient")
    (where / "context" / "repos.md").write_text("tests: make check")
    (where / "notes" / "deep").mkdir(parents=True)
    (where / "notes" / "deep" / "by hand.txt").write_bytes(b"\xff\0 mine")
    with AgentHome(where) as home:
        home.errands.enqueue("mine", "chore", {"do": "tidy"}, notes="by me")
        home.diary.append("note", {"text": "mine"})
        home.regenerate_dashboard()
    return where


MINE = ("persona.md", "context/repos.md", "notes/deep/by hand.txt")


def _mine(where: Path) -> dict[str, bytes]:
    return {name: (where / name).read_bytes() for name in MINE}


def _errands(where: Path) -> dict[str, str]:
    with closing(sqlite3.connect(where / "state.sqlite")) as connection:
        return dict(connection.execute("SELECT id, status FROM work_items"))


def test_show_lists_the_homes_and_whose_each_file_is(place: Place, agent: Path) -> None:
    (agent / "state.sqlite.corrupt-1").write_bytes(b"x")
    rows = {f["path"]: f for f in place.caloron("show").data["files"]}
    whose = {name: rows[str(agent / name)]["whose"] for name in (*MINE, "state.sqlite")}
    assert whose == dict.fromkeys(MINE, "person") | {"state.sqlite": "ours"}
    assert rows[str(agent / "cycle.json")]["whose"] == "ours"
    assert rows[str(agent / "state.sqlite.corrupt-1")]["whose"] == "aside"
    assert rows[str(agent / "persona.md")]["what"] == "home of a"
    assert not any(name.endswith((".lock", "-wal", "-shm")) for name in rows)


def test_garbage_in_a_home_is_found_and_made_anew_while_the_operators_files_stay(
    place: Place, agent: Path
) -> None:
    good, facts, mine = _errands(agent), place.facts(), _mine(agent)
    cycle = cycles_in(agent).look().state
    assert place.deviations() == []
    for name in ("state.sqlite", "cycle.json", "dashboard.md"):
        (agent / name).write_bytes(b"garbage \xff" * 100)
    assert sorted(place.deviations()) == [
        str(agent / name) for name in ("cycle.json", "state.sqlite")
    ]
    assert place.caloron("verify", "--repair", "--dry-run").code == 9
    answer = place.verify("--repair")
    assert answer["deviations"] == []
    assert len(answer["repaired"]) == 3
    # What the operator had handed in stood in that file alone, which is kept.
    assert _errands(agent) == {item: status for item, status in good.items() if item != "mine"}
    assert len(list(agent.glob("state.sqlite.corrupt-*[0-9]"))) == 1
    assert len(list(agent.glob("cycle.json.damaged*"))) == 1
    again = cycles_in(agent).look().state
    assert (again.cycle_number, again.status) == (cycle.cycle_number, cycle.status)
    assert (_mine(agent), place.facts()) == (mine, facts)
    assert place.verify("--repair")["repaired"] == []


def test_a_page_or_an_errand_that_somebody_changed_is_found_and_put_right(
    place: Place, agent: Path
) -> None:
    page, good = agent / "dashboard.md", _errands(agent)
    text = page.read_text()
    page.write_text(text.replace("| chore | 1 |", "| chore | 7 |"))
    assert page.read_text() != text
    assert place.deviations() == [str(page)]
    item = next(item for item, status in good.items() if status == "done")
    with AgentHome(agent) as home:
        home.errands.reopen(item, "by hand")
    found = {d["target"]: (d["expected"], d["found"]) for d in place.verify()["deviations"]}
    assert found[f"{agent / 'state.sqlite'}, {item}"] == ("done", "pending")
    assert place.verify("--repair")["deviations"] == []
    assert _errands(agent) == good
    with AgentHome(agent) as home:
        home.diary.append("note", {"text": "later"})
    # One that is only behind its queue is nobody's mistake.
    told = place.verify()
    assert [note["target"] for note in told["notes"]] == [str(page)]


@pytest.mark.parametrize(
    "damage",
    ["DROP TRIGGER caloron_events_no_delete", "DROP TABLE caloron_notes", "unlink", "folder"],
)
def test_whatever_is_wrong_with_the_file_of_a_home_is_put_right(
    place: Place, agent: Path, damage: str
) -> None:
    file, good = agent / "state.sqlite", _errands(agent)
    if damage.startswith("DROP"):
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(damage)
    else:
        for name in ("state.sqlite", "state.sqlite-wal", "state.sqlite-shm"):
            (agent / name).unlink(missing_ok=True)
        if damage == "folder":
            file.mkdir()
    assert str(file) in place.deviations()
    assert place.verify("--repair")["deviations"] == []
    assert _errands(agent) == {item: status for item, status in good.items() if item != "mine"}


def test_a_home_that_nobody_needs_or_that_the_ledger_does_not_know_is_right(
    place: Place, agent: Path
) -> None:
    shutil.rmtree(place.project / "agents" / "b")
    (place.project / "agents" / "stranger").mkdir()
    (place.project / "agents" / "linked").symlink_to(agent)
    (place.project / "agents" / "readme.txt").write_text("a file")
    assert place.deviations() == []


def test_a_backup_brings_back_everything_of_a_home_that_the_ledger_cannot_tell(
    place: Place, agent: Path
) -> None:
    mine, errands = _mine(agent), _errands(agent)
    cycle, page = cycles_in(agent).look().state, (agent / "dashboard.md").read_bytes()
    made = place.root / "homes.tar"
    answer = place.caloron("backup", str(made))
    parts = {part["name"] for part in answer.data["parts"]}
    assert {f"agents/a/{name}" for name in (*MINE, "state.sqlite", "cycle.log")} <= parts
    assert not any(name.endswith(("-wal", "-shm", ".lock")) for name in parts)
    shutil.rmtree(place.home)
    assert place.caloron("restore", str(made), "--dry-run").code == 9
    assert place.caloron("restore", str(made)).code == 0
    assert (_mine(agent), _errands(agent)) == (mine, errands)
    assert cycles_in(agent).look().state == cycle
    assert (agent / "dashboard.md").read_bytes() == page
    assert place.verify()["deviations"] == []
    with AgentHome(agent) as home:
        assert home.errands.get("mine").notes == "by me"
        assert home.diary.tail(1)[0].payload == '{"text":"mine"}'


def test_what_a_backup_cannot_carry_of_a_home_is_named_and_stops_nothing(
    place: Place, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (agent / "state.sqlite").write_bytes(b"garbage" * 100)
    (agent / "state.sqlite.corrupt-7").write_bytes(b"x")
    (agent / "link.md").symlink_to("/etc/passwd")
    (agent / os.fsdecode(b"\xff.txt")).write_bytes(b"x")
    (agent / "token.md").write_text("hunter2-is-my-token-1234567890")
    monkeypatch.setenv("CALORON_TOKEN", "hunter2-is-my-token-1234567890")
    config = place.project / "config.yml"
    config.write_text(config.read_text().replace("token_env: ''", "token_env: CALORON_TOKEN"))
    with (agent / "huge.bin").open("wb") as file:
        file.truncate((16 << 20) + 1)
    made = place.root / "rest.tar"
    answer = place.caloron("backup", str(made))
    assert answer.code == 0, answer
    told = "\n".join(answer.data["left_out"])
    for name in ("state.sqlite: it", "state.sqlite.corrupt-7", "huge.bin", "\\udcff", "token.md"):
        assert f"agents/a/{name}" in told, (name, told)
    with tarfile.open(made) as tar:
        names = tar.getnames()
    assert "agents/a/persona.md" in names
    assert not any(name.endswith(("link.md", "token.md", "huge.bin")) for name in names)
    assert b"hunter2-is" not in made.read_bytes()


def _but_locks(home: Path) -> dict[str, bytes]:
    return {name: text for name, text in tree(home).items() if not name.endswith(".lock")}


def test_a_home_in_a_backup_that_is_none_is_refused_with_nothing_changed(
    place: Place, agent: Path
) -> None:
    made = place.root / "homes.tar"
    assert place.caloron("backup", str(made)).code == 0
    before = _but_locks(place.home)
    for wanted, name, content in (
        ("agents/a/state.sqlite: ", "agents/a/state.sqlite", b"garbage" * 100),
        ("is a file and a folder", "agents/a/notes", b"x"),
    ):

        def change(parts: dict[str, bytes], _told: Any, n: str = name, c: bytes = content) -> None:
            parts[n] = c

        bad = made_of(made, place.root / "bad.tar", change)
        answer = place.caloron("restore", str(bad), "--force")
        assert answer.code == 8
        assert wanted in answer.stdout
        assert _but_locks(place.home) == before


def test_a_backup_taken_while_an_agent_works_has_a_home_that_goes_on(home: Home) -> None:
    gate = home.gate("work")
    home.script(writes("a", run=gate.line))
    running = home.start_sprint(task("a"))
    gate.wait_for_agent()
    (home.root / "kept").mkdir()
    made = home.root / "kept" / "busy.tar"
    assert home.caloron("state", "backup", str(made)).code == 0
    gate.open()
    assert running.wait().code == 0
    number = home.caloron("agents", "show", "a").data["cycle"]["number"]
    assert home.caloron("state", "restore", str(made), "--force").code == 0
    assert home.caloron("resume").code == 0
    shown = home.caloron("agents", "show", "a").data
    assert {errand["status"] for errand in shown["queue"]} == {"done"}
    assert shown["cycle"]["number"] > number
    assert home.caloron("state", "verify").code == 0


def test_the_log_of_a_damaged_file_is_kept_with_it(place: Place, agent: Path) -> None:
    with closing(sqlite3.connect(agent / "state.sqlite")) as open_one:
        # Somebody looks: what is written now stays in the log.
        open_one.execute("SELECT count(*) FROM work_items").fetchone()
        with AgentHome(agent) as home:
            home.errands.enqueue("only in the log", "chore", {})
        whole = (agent / "state.sqlite-wal").read_bytes()
        assert b"only in the log" in whole
        shutil.copyfile(agent / "state.sqlite-wal", place.root / "wal")
    shutil.copyfile(place.root / "wal", agent / "state.sqlite-wal")
    (agent / "state.sqlite").write_bytes(b"garbage" * 600)
    assert place.verify("--repair")["deviations"] == []
    kept = [f.read_bytes() for f in agent.glob("state.sqlite.corrupt-*-wal")]
    assert kept == [whole]


def test_a_repair_claims_no_more_than_it_did_and_is_stopped_by_nothing(
    place: Place, agent: Path
) -> None:
    number = cycles_in(agent).look().state.cycle_number
    (agent / "cycle.json").write_bytes(b"")
    (agent / "cycle.log").unlink()
    (agent / "dashboard.md").unlink()
    (agent / "dashboard.md").mkdir()
    answer = place.caloron("verify", "--repair")
    assert answer.code == 8
    left = answer.json["data"]
    assert [one["target"] for one in left["deviations"]] == [str(agent / "dashboard.md")]
    assert len(set(left["repaired"])) == len(left["repaired"]) >= 1
    assert f"not repaired: {agent / 'dashboard.md'}" in answer.stderr
    assert cycles_in(agent).look().state.cycle_number >= number


def test_whatever_stands_in_a_diary_is_shown_and_stops_no_sprint(home: Home) -> None:
    home.script(writes("a"))
    assert home.sprint(task("a")).code == 0
    where = home.project() / "agents" / "a"
    with closing(sqlite3.connect(where / "state.sqlite", isolation_level=None)) as connection:
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
