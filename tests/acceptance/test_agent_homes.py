"""Each agent of a sprint has a home that survives it, and is told of its last wake."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.acceptance.home import Home, does, process_lives, task, wait_for, writes


def _prompts(home: Home, task: str, role: str, sprint: str = "demo-1") -> list[str]:
    """What the agents of a task were asked, in order."""
    runs = home.project() / "runs" / sprint / task
    found = [p for p in runs.glob(f"*-{role}/*/prompt.txt") if p.exists()]
    return [p.read_text() for p in sorted(found, key=lambda p: p.stat().st_mtime_ns)]


def _cycle(home: Home) -> dict[str, Any]:
    found: dict[str, Any] = home.caloron("agents", "show", "a").data["cycle"]
    return found


def test_a_crashed_cycle_is_in_the_next_prompt_with_its_number_and_its_last_step(
    home: Home,
) -> None:
    gate = home.gate("work")
    line = f"echo 'halfway through the parser'; {gate.line}"
    home.script(writes("a", run=line))
    running = home.start_sprint(task("a"))
    gate.wait_for_agent()
    # It is known while the agent is still at work.
    wait_for(
        lambda: home.caloron("agents", "show", "a").data["cycle"]["status"] == "open", "a wake"
    )
    running.kill()
    # The shim first: one that sees its agent end writes down how it ended.
    for words in ("shim.py", ""):
        for pid in home.processes(words):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not home.processes(), "nobody is left")
    gate.open()
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    first, second = _prompts(home, "a", "implement")
    assert "cycle" not in first
    assert second.startswith("Your own diary (data")
    assert "You are a, and this is your cycle 2." in second
    assert "Cycle 1 crashed" in second
    assert f"the last it wrote: at gate {gate.name}" in second

    shown = home.caloron("agents", "show", "a")
    assert shown.data["cycle"]["number"] == 2
    assert shown.data["cycle"]["status"] == "ended"
    assert {errand["status"] for errand in shown.data["queue"]} == {"done"}
    types = [event["type"] for event in shown.data["diary"]]
    assert types.count("attempt_started") == 2
    assert {"attempt_lost", "attempt_ended", "work_item_resolved"} <= set(types)
    assert "Cycle 2 ended as success" in home.caloron("agents", "show", "a", json=False).stdout
    assert (Path(shown.data["home"]) / "dashboard.md").read_text().startswith("#")
    assert len(shown.data["retros"]) == 1


def test_a_home_that_is_deleted_or_spoiled_loses_nothing_and_holds_nobody_up(home: Home) -> None:
    home.script(writes("a"), writes("b"))
    assert home.sprint(task("a")).code == 0
    place = home.project() / "agents"
    (place / "a" / "persona.md").write_text("patient")
    (place / "a" / "state.sqlite").write_bytes(b"not a database" * 100)
    shutil.rmtree(place / "reviewer-1")
    shown = home.caloron("agents", "show", "a").data
    assert [wrong["target"] for wrong in shown["disagreements"]] == ["state.sqlite"]
    assert (shown["cycle"]["number"], len(shown["work"])) == (1, 1)
    answer = home.sprint(task("a"), task("b"))
    assert answer.code == 0, answer
    # What is an operator's stays; only the file that is none is set aside.
    assert (place / "a" / "persona.md").read_text() == "patient"
    assert len(list((place / "a").glob("state.sqlite.corrupt-*[0-9]"))) == 1
    shown = home.caloron("agents", "show", "a").data
    assert len(shown["queue"]) >= 2
    assert "In progress" not in shown["about"]
    with sqlite3.connect(place / "reviewer-1" / "state.sqlite") as connection:
        (count,) = connection.execute("SELECT count(*) FROM work_items").fetchone()
    assert count >= 2


def test_the_reviewer_of_two_tasks_at_once_has_one_cycle_for_both(home: Home) -> None:
    gate = home.gate("reviews")
    review = does("review", run=gate.line, output="APPROVED")
    home.script(review, writes("a"), writes("b"))
    running = home.start_sprint(task("a"), task("b"))
    gate.wait_for_agent(2)
    pids = home.processes("stub")
    assert all(process_lives(pid) for pid in pids)
    gate.open()
    assert running.wait().code == 0
    shown = home.caloron("agents", "show", "reviewer-1").data
    assert len(shown["queue"]) == 2
    assert shown["cycle"]["status"] == "ended"


def test_a_place_where_no_home_can_be_written_stops_no_sprint(home: Home) -> None:
    (home.project() / "agents").write_text("in the way")
    home.script(writes("a"))
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    assert "is left as it is for now" in answer.stderr


def test_numbers_of_cycles_go_on_after_an_older_state_was_restored(home: Home) -> None:
    home.script(writes("a"))
    assert home.sprint(task("a")).code == 0
    backup = str(home.root / "backup.tar")
    assert home.caloron("state", "backup", backup).code == 0
    assert home.sprint(task("a")).code == 0
    assert _cycle(home)["number"] == 2
    assert home.caloron("state", "restore", backup, "--force").code == 0
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    shown = home.caloron("agents", "show", "a").data
    assert [cycle["number"] for cycle in shown["cycles"]] == [3, 1]
    assert "this is your cycle 3." in _prompts(home, "a", "implement", "demo-2")[0]


def test_the_cycles_of_a_sprint_are_shown_where_others_are(home: Home) -> None:
    home.script(writes("a"))
    assert home.sprint(task("a")).code == 0
    log = home.caloron("cycle", "log", "a").data
    assert [entry["event"] for entry in log["entries"]][::4] == ["begin", "end"]
    assert log["log_file"] == str(home.project() / "agents" / "a" / "cycle.log")
    status = home.caloron("cycle", "status", "a", "--project", "demo").data
    assert status["report"]["last_cycle"] == 1
    assert home.caloron("cycle", "status", "nobody", "--project", "demo").code == 3
    # Cycles that `a` has of its own come first; the others are one word away.
    assert home.caloron("cycle", "begin", "a").code == 0
    own = home.caloron("cycle", "log", "a").data
    assert [entry["event"] for entry in own["entries"]] == ["begin"]
    assert "--project demo" in own["notices"][0]


def test_an_errand_that_was_changed_by_hand_is_told_and_put_right(home: Home) -> None:
    home.script(writes("a"), writes("b"))
    assert home.sprint(task("a")).code == 0
    place = home.project() / "agents" / "a"
    with sqlite3.connect(place / "state.sqlite") as connection:
        connection.execute("UPDATE work_items SET status = 'failed'")
    shown = home.caloron("agents", "show", "a", json=False).stdout
    assert "failed here, and done by the ledger" in shown
    answer = home.sprint(task("b"))
    assert answer.code == 0, answer
    assert "the home of a was put right" in answer.stderr
    assert home.caloron("agents", "show", "a").data["disagreements"] == []
