"""`trace` and `agents`: the events of a task, and the agents that worked on it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from caloron.cli.app import main


def test_a_trace_lists_the_events_of_a_task_in_order(run, sprinted: Path) -> None:
    data = run.data("trace", "a")
    moves = [e["what"].partition(" (")[0] for e in data["events"] if e["type"] == "task_moved"]
    assert moves == [
        "Pending → Ready",
        "Ready → InProgress",
        "InProgress → InReview",
        "InReview → InProgress",
        "InProgress → InReview",
        "InReview → Done",
    ]
    times = [e["at"] for e in data["events"]]
    assert times == sorted(times)
    assert [a["role"] for a in data["attempts"]] == ["implement", "review", "fix", "review"]
    assert all(a["exit_code"] == 0 and a["duration_s"] >= 0 for a in data["attempts"])
    forge = [e["what"] for e in data["events"] if e["type"] == "effect_done"]
    assert "its pull request was opened" in forge
    assert "its pull request was merged" in forge
    assert data["pending"] == []
    reply = run.text("trace", "a", "--sprint", "1")
    assert reply.startswith("a of demo-1: Done")
    assert "make it better" in reply


def test_every_event_of_the_task_is_in_its_trace(run, sprinted: Path) -> None:
    """The trace contains each event of the task in the event log."""
    with sqlite3.connect(sprinted / "ledger.sqlite") as ledger:
        rows = ledger.execute("SELECT work_item_id, payload FROM events").fetchall()
    about = [
        (item, payload)
        for item, payload in rows
        if (item or "").startswith("demo-1/a/") or json.loads(payload).get("task") == "a"
    ]
    assert len(run.data("trace", "a")["events"]) == len(about)
    baseline = run.data("trace", "baseline")["events"]
    assert baseline
    assert all(event["work"] == "1-verify" for event in baseline)


def test_an_imported_event_is_only_in_the_trace_of_its_task(run, sprinted) -> None:
    before = len(run.data("trace", "a")["events"])
    with sqlite3.connect(sprinted / "ledger.sqlite") as ledger:
        for changes in ({"a": "Done"}, {"other": "Done"}):
            payload = json.dumps({"sprint": "demo-1", "changes": changes})
            ledger.execute(
                "INSERT INTO events (ts, type, payload) VALUES (9e12, 'state_imported', ?)",
                (payload,),
            )
    events = run.data("trace", "a")["events"]
    assert len(events) == before + 1
    assert events[-1]["what"] == "state imported: changes {'a': 'Done'}"


def test_a_changed_cost_changes_only_the_reported_cost(run, sprinted: Path) -> None:
    before = run.data("trace", "a")
    with sqlite3.connect(sprinted / "ledger.sqlite") as ledger:
        (raw,) = ledger.execute("SELECT data FROM tasks WHERE id = 'a'").fetchone()
        task = json.loads(raw)
        task["usage"]["spent"]["usd"] = 1.25
        ledger.execute("UPDATE tasks SET data = ?", (json.dumps(task).encode(),))
    after = run.data("trace", "a")
    assert after.pop("cost_usd") == 1.25
    assert before.pop("cost_usd") == 0
    assert after == before


def test_an_unknown_task_or_agent_is_not_found(run, sprinted: Path) -> None:
    for arguments in (("b",), ("a", "--sprint", "7"), ("a", "--sprint", "other-1")):
        assert run.refused(3, "", "trace", *arguments)["hint"]
    assert run("trace", "../a")[0] == 2
    assert run("trace", "a", "--sprint", "..")[0] == 2


def test_agents_are_listed_with_their_tasks_attempts_and_rounds(run, sprinted: Path) -> None:
    for words in (("agents",), ("agents", "list")):
        answer = run.data(*words)
        agents = {agent["agent_id"]: agent for agent in answer["agents"]}
        assert agents.keys() == {"a", "reviewer-1"}
        assert (agents["a"]["tasks"], agents["a"]["done"]) == (1, 1)
        assert agents["a"]["attempts"] == 2
        assert agents["a"]["rounds"] == 2
        assert agents["a"]["roles"] == ["fix", "implement"]
        assert agents["reviewer-1"]["attempts"] == 2
    shown = run.data("agents", "show", "a")
    assert [work["role"] for work in shown["work"]] == ["implement", "fix"]
    assert run("agents", "show", "nobody")[0] == 3
    assert run("agents", "show", "..")[0] == 2


def test_a_project_without_a_sprint_has_no_agents_and_no_trace(run) -> None:
    assert run("init", "demo", "--framework", "stub")[0] == 0
    assert run.data("agents")["agents"] == []
    assert run("trace", "a")[0] == 3


def test_the_output_option_may_stand_before_or_after_the_command(run, capsys) -> None:
    assert run("init", "demo", "--framework", "stub")[0] == 0
    capsys.readouterr()
    assert main(["agents", "--output", "json", "list"]) == 0
    assert json.loads(capsys.readouterr().out)["command"] == "agents.list"
    assert (
        run.text("agents", "--output", "json", "list", "--output", "text")
        == "No agent has worked yet.\n"
    )


def test_the_comment_on_an_issue_counts_attempts_as_the_report_does(run, sprinted: Path) -> None:
    (task,) = run.data("report")["tasks"]
    comments = run.data("issue", "show", str(task["issue_number"]))["comments"]
    (progress,) = [c["body"] for c in comments if "| attempts |" in c["body"]]
    assert f"| attempts | {task['runs']} |" in progress


def test_status_names_the_person_who_declined_a_plan(run, sprinted: Path, capsys) -> None:
    with sqlite3.connect(sprinted / "ledger.sqlite") as ledger:
        approval = json.dumps({"number": 7, "declined": "ada"})
        ledger.execute(
            "UPDATE sprints SET phase = 'approval', data = CAST(json_set(CAST(data AS TEXT),"
            " '$.phase', 'approval', '$.planning.approval', json(?)) AS BLOB)",
            (approval,),
        )
    assert run.data("status")["last_sprint"]["declined"] == "ada"
    assert "its plan was declined by ada" in run.text("status")
