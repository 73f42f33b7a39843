"""A fact has the same number in every view of it."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from caloron.durations import span
from tests.support.home import Home, does, task, writes
from tests.support.wait import wait_for


def _cost(usd: float) -> dict[str, Any]:
    return {"cost_usd": usd, "tokens_in": 1000, "tokens_out": 10}


def _common_value(values: dict[str, Any]) -> Any:
    """Return the value that all views have in common."""
    assert len(set(map(repr, values.values()))) == 1, values
    return next(iter(values.values()))


@pytest.fixture(scope="module")
def read_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A sprint with all that makes numbers differ: stopped, killed, rejected, fixed and merged."""
    home = Home(tmp_path_factory.mktemp("ended")).init()
    stopped, killed = home.gate("stopped"), home.gate("killed")
    home.set(verify="true")
    home.script(
        writes("a", run=stopped.line, report=_cost(0.25)),
        writes("b", report=_cost(0.5)),
        does("fix", "a", run=f"{killed.line}; echo more >> a.txt", report=_cost(0.125)),
        does("review", "a", round=1, output="It is short.\nCHANGES_NEEDED: say more in a.txt",
             report=_cost(0.0625)),
        does("review", output="APPROVED", report=_cost(0.03125)),
    )  # fmt: skip
    running = home.start_sprint(task("a"), task("b", "a"))
    stopped.wait_for_agent()
    assert running.interrupt().code == 11
    stopped.open()
    running = home.start("resume")
    killed.wait_for_agent()
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    killed.open()
    wait_for(lambda: not home.processes("shim.py"), "the agent is done")
    assert home.caloron("resume").code == 0
    yield home
    home.close()


def test_every_view_has_the_same_numbers_of_a_stopped_killed_and_rejected_sprint(
    read_only: Home,
) -> None:
    home = read_only
    # A sprint that has ended repeats its answer.
    ended = home.caloron("resume")
    assert ended.code == 0, ended
    views = ("report", "retro", "metrics", "status", "history", "agents")
    data = {name: home.caloron(name).data for name in views} | {"end": ended.data}
    data["show"] = home.caloron("show", "1").data
    report, retro, metrics, show = (data[n] for n in ("report", "retro", "metrics", "show"))
    last, history = data["status"]["last_sprint"], data["history"]["sprints"][0]

    total = _common_value({
        "end": ended.data["duration_s"], "report": report["kpis"]["sprint_time_s"],
        "retro": retro["kpis"]["sprint_time_s"], "metrics": metrics["avg_sprint_time_s"],
        "show": show["duration_s"], "history": history["duration_s"],
    })  # fmt: skip
    work = _common_value({
        "end": ended.data["work_time_s"], "report": report["kpis"]["work_time_s"],
        "retro": retro["kpis"]["work_time_s"], "metrics": metrics["avg_work_time_s"],
        "show": show["kpis"]["work_time_s"],
    })  # fmt: skip
    assert 0 < work <= total
    pages = {name: home.caloron(name, json=False).stdout for name in views}
    pages["show"] = home.caloron("show", "1", json=False).stdout
    for name in ("report", "retro", "metrics", "show"):
        assert span(total) in pages[name], name
        assert f"working time {span(work)}" in pages[name], name
    assert f", {span(total)}" in pages["history"]

    done = _common_value({
        "end": ended.data["completed_tasks"], "report": report["kpis"]["completed_tasks"],
        "retro": retro["kpis"]["completed_tasks"], "metrics": metrics["completed_tasks"],
        "show": show["completed_tasks"], "history": history["completed_tasks"],
        "status": last["completed_tasks"],
    })  # fmt: skip
    assert done == 2

    agents = {row["agent_id"]: row for row in data["agents"]["agents"]}
    cost = _common_value({
        "end": ended.data["cost_usd"], "report": report["kpis"]["cost_usd"],
        "retro": retro["kpis"]["cost_usd"], "metrics": metrics["cost_usd"],
        "show": show["cost_usd"], "status": last["cost_usd"],
        "agents": round(sum(row["cost_usd"] for row in agents.values()), 4),
    })  # fmt: skip
    assert cost > 0.9
    for name in ("a", "b"):
        _common_value({
            "report": {t["id"]: t for t in report["tasks"]}[name]["cost_usd"],
            "show": {t["id"]: t for t in show["tasks"]}[name]["cost_usd"],
            "trace": home.caloron("trace", name).data["cost_usd"],
            "end": ended.tasks[name]["cost_usd"],
        })  # fmt: skip
        time_s = _common_value({
            "agents": agents[name]["duration_s"],
            "report": {a["agent"]: a for a in report["agents"]}[name]["time_s"],
            "retro": {a["agent"]: a for a in retro["agents"]}[name]["time_s"],
        })  # fmt: skip
        assert time_s > 0
        works = [
            work
            for agent in (name, "reviewer-1")
            for work in home.caloron("agents", "show", agent).data["work"]
            if work["task"] == name
        ]
        issue = ended.tasks[name]["issue_number"]
        (progress,) = [
            comment["body"]
            for comment in home.caloron("issue", "show", str(issue)).data["comments"]
            if "| attempts |" in comment["body"]
        ]
        attempts = _common_value({
            "agents": sum(work["attempts"] for work in works),
            "report": {t["id"]: t for t in report["tasks"]}[name]["runs"],
            "show": {t["id"]: t for t in show["tasks"]}[name]["runs"],
            "issue": int(progress.partition("| attempts | ")[2].split()[0]),
        })  # fmt: skip
        # a: stopped and begun again, rejected, fixed, reviewed again. b: done and reviewed.
        assert attempts == {"a": 5, "b": 2}[name]


def test_every_view_numbers_attempts_in_the_same_way(read_only: Home) -> None:
    """A claim that began nothing takes a number of its own, which no view shows."""
    home = read_only
    trace = home.caloron("trace", "a").data
    logs = home.caloron("logs", "a").data["attempts"]
    views = {
        "trace": [(a["item"].rpartition("/")[2], a["attempt"]) for a in trace["attempts"]],
        "events": [
            (event["work"], int(event["what"].split()[1]))
            for event in trace["events"]
            if event["type"] == "attempt_started"
        ],
        "logs": [(attempt["work"], attempt["attempt"]) for attempt in logs],
        "headings": [
            (words[1].rstrip(","), int(words[3]))
            for line in home.caloron("logs", "a", json=False).stdout.splitlines()
            if line.startswith("── ") and (words := line.split())
        ],
    }
    assert ("1-implement", 2) in _common_value({name: sorted(view) for name, view in views.items()})
    by_path = {attempt["path"]: attempt["attempt"] for attempt in logs}
    assert by_path == {a["logs"]: a["attempt"] for a in trace["attempts"]}
    works = [
        work
        for agent in ("a", "reviewer-1")
        for work in home.caloron("agents", "show", agent).data["work"]
        if work["task"] == "a"
    ]
    attempts = [a for a in trace["attempts"] if a["role"] != "verify"]
    counted = Counter(a["item"].rpartition("/")[2] for a in attempts)
    assert counted == {work["work"]: work["attempts"] for work in works}
    took = sum(work["duration_s"] for work in works)
    assert abs(sum(a["duration_s"] for a in attempts) - took) < 0.1 * len(attempts)


def test_an_agent_is_counted_by_sprint_when_a_later_task_has_the_same_id(home: Home) -> None:
    home.script(
        writes("a", report=_cost(0.25)),
        does("review", round=1, output="CHANGES_NEEDED: more"),
        does("fix", run="echo more >> a.txt", report=_cost(0.5)),
    )
    assert home.sprint(task("a")).code == 0
    home.script(writes("a", files={"a.txt": "again\n"}, report=_cost(1.0)))
    assert home.sprint(task("a")).code == 0
    show = home.caloron("agents", "show", "a").data
    (row,) = [row for row in home.caloron("agents").data["agents"] if row["agent_id"] == "a"]
    rows = [(s["sprint_id"], s["number"], s["tasks"], s["attempts"], s["rounds"], s["cost_usd"])
            for s in show["by_sprint"]]  # fmt: skip
    assert rows == [("demo-1", 1, 1, 2, 2, 0.75), ("demo-2", 2, 1, 1, 1, 1.0)]
    for name in ("tasks", "done", "attempts", "rounds", "failed_attempts", "cost_usd", "tokens"):
        assert sum(s[name] for s in show["by_sprint"]) == row[name] == show[name], name
    for sums in show["by_sprint"]:
        report = home.caloron("report", str(sums["number"])).data
        (agent,) = [agent for agent in report["agents"] if agent["agent"] == "a"]
        assert (agent["runs"], agent["time_s"]) == (sums["attempts"], sums["duration_s"])
    text = home.caloron("agents", "show", "a", json=False).stdout
    first, second = (text.index(f"Sprint demo-{n}: ") for n in "12")
    assert first < text.index("4-fix") < second


def test_the_report_names_rejections_and_crashes_but_no_acts_of_the_user(read_only: Home) -> None:
    report = read_only.caloron("report").data
    rejected = [(r["task"], r["reason"]) for r in report["rejections"]]
    assert rejected == [("a", "say more in a.txt")]
    messages = [problem["what"] for problem in report["problems"]]
    assert "the engine was killed or crashed, and the sprint was resumed" in messages
    assert not [what for what in messages if "was stopped" in what or "not needed" in what], (
        messages
    )
    page = read_only.caloron("report", json=False).stdout
    assert "a: say more in a.txt" in page
    assert report["kpis"]["human_acts"] == 0


def test_acts_of_people_are_counted_and_the_supervisor_is_named(home: Home) -> None:
    home.script(writes("a"), does("fix", run="echo better >> a.txt"), default="CHANGES_NEEDED: no")
    home.set(max_fix_rounds=1)
    answer = home.sprint(task("a"))
    assert answer.statuses == {"a": "Escalated"}
    pull = answer.tasks["a"]["pr_number"]
    assert home.caloron("pr", "review", str(pull), "--approve").code == 0
    assert home.caloron("resume").code == 0
    kpis = home.caloron("report").data["kpis"]
    assert (kpis["human_acts"], kpis["total_interventions"]) == (1, 0)
    assert kpis["clean_task_pct"] == 0


def test_an_earlier_sprint_and_its_planner_have_the_same_numbers_in_every_view(home: Home) -> None:
    plan = '[{"id": "a", "title": "A", "agent_prompt": "do a", "files": ["src/a.py"]}]'
    home.script(does("po", output=plan), writes("a"))
    assert home.sprint().code == 0
    (implemented,) = (home.project() / "runs" / "demo-1" / "a").glob("*-implement/*/prompt.txt")
    assert "- src/a.py" in implemented.read_text()
    # The second sprint has its plan from a file, and shows data that the first sprint lacks.
    unclear = "done\n---\ncaloron_feedback:\n  task_clarity: 2\n  self_assessment: partial\n---"
    home.script(writes("b", output=unclear))
    assert home.sprint(task("b")).code == 0
    trace = home.caloron("trace", "planner").data
    assert trace["sprint_id"] == "demo-1"
    assert trace["attempts"]
    refused = home.caloron("trace", "planner", "--sprint", "2")
    assert refused.error["message"] == "the planner did not run in sprint demo-2"
    assert refused.error["hint"] == "caloron trace planner --sprint demo-1"
    now, then = (home.caloron("retro", n).data["improvements"] for n in "21")
    assert "imp-task-clarity" in {improvement["id"] for improvement in now}
    assert "imp-task-clarity" not in {improvement["id"] for improvement in then}
