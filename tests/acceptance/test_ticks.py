"""A sprint that nothing drives but `caloron tick`, again and again, as cron does."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.gitea import Server
from tests.support.home import Answer, Home, does, task, writes
from tests.support.live import GiteaHome
from tests.support.wait import process_lives, wait_for

DIAMOND = (task("a"), task("b", "a"), task("c", "a"), task("d", "b", "c"))
_MOST_TICKS = 400


@pytest.fixture(params=["local", "gitea"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A project on each forge that runs here."""
    if request.param == "local":
        made = Home(tmp_path).init()
    else:
        server: Server = request.getfixturevalue("gitea")
        made = GiteaHome(tmp_path, server).on_gitea()
    yield made
    made.close()


def begin(home: Home, *tasks: dict[str, Any], options: tuple[str, ...] = ()) -> None:
    answer = home.sprint(*tasks, options=("--begin-only", *options))
    assert answer.code == 0, answer
    assert answer.data["next"] == "caloron tick --sprint demo-1"
    assert home.processes() == []


def tick(home: Home) -> Answer:
    return home.caloron("tick", "--sprint", "demo-1")


def until_ended(home: Home) -> Answer:
    """The cron of an impatient user."""
    for _ in range(_MOST_TICKS):
        answer = tick(home)
        if answer.code or answer.data["ended"]:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"it never ended: {answer}")


def purposes(home: Home, number: int) -> Counter[str]:
    """Count the comments of an issue by their markers."""
    counts: Counter[str] = Counter()
    for body in home.comments(number):
        marks = [line for line in body.splitlines() if line.startswith("<!-- caloron:")]
        counts.update(marks)
    return counts


def assert_each_once(home: Home, answer: Answer) -> None:
    for row in answer.tasks.values():
        assert set(purposes(home, row["issue_number"]).values()) <= {1}
    assert len(home.issues()) == len(answer.tasks)
    assert len(home.pulls()) == len(answer.tasks)


def test_a_diamond_with_a_rejected_change_is_driven_by_ticks_that_are_killed(
    anywhere: Home,
) -> None:
    """Every other tick is killed at a random moment."""
    home, chance = anywhere, random.Random(7)
    home.set(lease_s=3.0)
    home.script(
        does("review", "b", round=1, output="CHANGES_NEEDED: say more"),
        does("fix", "b", files={"b.txt": "b, and more\n"}),
        *(writes(name) for name in "abcd"),
    )
    begin(home, *DIAMOND)
    kills = 0
    for _ in range(_MOST_TICKS):
        running = home.start("tick", "--sprint", "demo-1")
        time.sleep(chance.uniform(0.1, 0.9))
        kills += running.process.poll() is None
        running.kill()
        answer = tick(home)
        if answer.code or answer.data["ended"]:
            break
    assert answer.code == 0, answer
    assert set(answer.statuses.values()) == {"Done"}
    assert kills > 3
    assert_each_once(home, answer)
    assert answer.tasks["b"]["review_rounds"] == 2
    again = tick(home)
    assert (again.code, again.statuses) == (0, answer.statuses)


def test_an_agent_lives_on_between_ticks_and_two_ticks_exclude_each_other(home: Home) -> None:
    gate = home.gate("work")
    home.script(writes("a", run=gate.line))
    begin(home, task("a"))
    wait_for(lambda: tick(home).data["agents"] and gate.arrivals, "an agent at work")
    pids = home.processes("scripted_agent")
    assert pids
    first = tick(home)
    assert (first.data["agents"], first.data["actions_taken"]) == (1, [])
    assert all(process_lives(pid) for pid in pids)
    # While a tick is at work, another tick leaves the project to it.
    slow = home.start("tick", "--sprint", "demo-1")
    answers = [tick(home) for _ in range(3)]
    slow.wait()
    assert all(answer.code == 0 for answer in answers)
    gate.open()
    assert until_ended(home).code == 0
    assert home.attempts("implement", "a") == 1


def test_a_tick_beside_a_running_sprint_leaves_it_alone(home: Home) -> None:
    gate = home.gate("work")
    home.script(writes("a", run=gate.line))
    running = home.start_sprint(task("a"))
    gate.wait_for_agent()
    answer = tick(home)
    assert (answer.code, answer.data) == (0, {"skipped": True, "ended": False})
    gate.open()
    assert running.wait().code == 0


def test_stop_ends_agents_of_ticks_and_yes_lets_ticks_continue(home: Home) -> None:
    gate = home.gate("work")
    home.script(writes("a", run=gate.line))
    begin(home, task("a"))
    wait_for(lambda: tick(home).data["agents"] and gate.arrivals, "an agent at work")
    stopped = home.caloron("stop")
    assert (stopped.code, stopped.data["sprint_id"]) == (0, "demo-1"), stopped
    assert home.processes() == []
    assert tick(home).data["agents"] == 0
    assert "caloron stop" in home.caloron("status").stdout
    assert home.caloron("stop").data["stopped"] is False
    gate.open()
    assert home.caloron("tick", "--sprint", "demo-1", "--yes").code == 0
    assert until_ended(home).code == 0


def test_a_waiting_plan_runs_once_a_person_approves_it(home: Home) -> None:
    home.script(writes("a"))
    plan = str(home.plan(task("a")))
    assert home.caloron("sprint", "--plan-only", "make it so", "--plan", plan).code == 0
    assert tick(home).data["phase"] == "approval"
    assert tick(home).data["statuses"] == {"a": "Pending"}
    trace = home.caloron("graph", "trace", "tick-demo-1").data
    assert trace["status"] == "Ok"
    assert [call["stage"] for call in trace["stages"]] == [
        "load_tick_state", "dag_evaluate", "decide_intervention", "save_tick_state",
    ]  # fmt: skip
    answer = home.caloron("tick", "--yes")
    assert answer.data["phase"] == "running"
    assert until_ended(home).code == 0


def test_a_schedule_of_the_first_compositions_drives_a_sprint(home: Home) -> None:
    """The job `sprint-tick` as it always was: its graph by name, the id of the sprint, a minute."""
    home.script(writes("a"))
    begin(home, task("a"))
    config = home.root / "scheduler.json"
    job = {"name": "sprint-tick", "cron": "* * * * * *", "graph": "sprint_tick_stateful",
           "input": {"sprint_id": "demo-1"}}  # fmt: skip
    config.write_text(json.dumps({"store_path": "", "jobs": [job]}))
    running = home.start("schedule", "run", "--config", str(config))
    home.wait_for_status("a", "Done")
    running.interrupt()
    assert len(home.pulls()) == 1


def test_an_unavailable_forge_is_reported_and_nothing_is_lost(
    tmp_path: Path, own_gitea: Server
) -> None:
    home = GiteaHome(tmp_path, own_gitea).on_gitea()
    gate = home.gate("work")
    home.script(writes("a", run=gate.line))
    begin(home, task("a"))
    wait_for(lambda: tick(home).data["agents"] and gate.arrivals, "an agent at work")
    own_gitea.kill()
    gate.open()
    away = tick(home)
    assert away.code == 0, away
    assert "did not answer" in away.data["outage"]
    own_gitea.start()
    answer = until_ended(home)
    assert answer.code == 0, answer
    home.close()


def test_a_tick_of_an_unknown_or_unplanned_sprint_is_refused(home: Home) -> None:
    for arguments, code, words in (
        (("--sprint", "nobody-1"), 3, "nobody-1"),
        (("--sprint", "demo-9"), 3, "demo-9"),
        (("--sprint", "../x-1"), 2, "../x"),
        (("--sprint", ""), 2, "SPRINT"),
        (("--limit", "0"), 2, "--limit"),
        ((), 3, "no sprint"),
    ):
        answer = home.caloron("tick", *arguments)
        assert answer.code == code, answer
        assert words in answer.error["message"]
