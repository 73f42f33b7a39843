"""`kill -9` of the engine, of a shim, or of both, at moments that a user would recognise."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.forms import final_form, lost_work
from tests.chaos.matrix import problems_of
from tests.chaos.world import SPRINT, World, new_world
from tests.support.home import does, task, writes
from tests.support.wait import wait_for

PLANNER = does("po", output=json.dumps([task("a")]))
REVIEW = does("review", output="APPROVED")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = new_world(tmp_path / "world", verify="")
    world.work = {"a": {"a.txt": "a"}}
    yield world
    world.kill_everything()


def times(name: str, world: World) -> int:
    return world.count_printed(name)


def shims(world: World, role: str = "") -> list[int]:
    """Return the living shims of this world; the planner's ends after the next one began."""
    lines = world.living().items()
    return [pid for pid, line in lines if "agents/supervise/shim.py" in line and role in line]


def at_work(world: World, attempt: int = 1) -> bool:
    """True if the agent that implements was started for this attempt."""
    begun = f"SELECT 1 FROM leases WHERE attempt = {attempt} AND item LIKE '%implement'"
    return bool(world.rows(begun))


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def assert_done(world: World) -> None:
    form = final_form(world)
    assert form["statuses"] == {"a": "Done"}
    assert [name for name, _, _ in form["issues"]] == [f"issue/{SPRINT}/a"], "nothing escalated"
    assert len(form["pulls"]) == 1
    assert problems_of(world) == []


def failures(world: World) -> int:
    ((data,),) = world.rows("SELECT data FROM tasks")
    return int(json.loads(data)["attempts"]["failures"])


def test_an_engine_killed_while_the_planner_thinks_goes_on_with_the_same_planner(
    world: World,
) -> None:
    """The goal is recorded before the planner is asked."""
    wait = f"echo asked; while [ ! -e {world.gates}/open ]; do sleep 0.05; done"
    world.script(PLANNER | {"run": wait}, writes("a"), REVIEW)
    engine = world.begin("sprint", "what I want", "--yes")
    wait_for(partial(times, "asked", world), "a planner at work")
    kill(engine.pid)
    engine.wait()
    assert world.rows("SELECT goal FROM sprints") == [("what I want",)]
    (world.gates / "open").touch()

    assert world.run("resume") == 0, world.log()

    assert times("asked", world) == 1
    assert_done(world)


@pytest.mark.parametrize(
    "point",
    [
        f"shim/{SPRINT}/po/1-po|shim.result.after_commit|1",
        "engine|settle.before_commit|1",
        "engine|settle.after_commit|1",
        "engine|tick.before_commit|2",
        "engine|tick.after_commit|2",
    ],
)
def test_a_planner_that_has_answered_is_not_asked_again(world: World, point: str) -> None:
    world.script(PLANNER | {"run": "echo asked"}, writes("a"), REVIEW)
    killed = world.root / "killed"
    code = world.run("sprint", "goal", "--yes", CALORON_CRASH_AT=f"{point}|{killed}")
    if code == -signal.SIGKILL:
        code = world.run("resume")

    assert code == 0, world.log()
    assert killed.exists()
    assert times("asked", world) == 1
    assert_done(world)


@pytest.mark.parametrize(
    ("role", "engine_too"),
    [("po", True), ("implement", True), ("review", False), ("review", True), ("verify", False)],
)
def test_a_shim_killed_in_any_role_leaves_no_process_and_its_work_is_repeated(
    world: World, role: str, engine_too: bool
) -> None:
    """Every process of a sandbox ends with its shim, which does not count as a failure."""
    wait = 'echo at work; [ "$CALORON_ATTEMPT" != 1 ] || sleep 600'
    if role == "verify":
        world.set(verify=wait)
    others: tuple[dict[str, Any], ...] = (PLANNER, writes("a"), REVIEW)
    world.script(*(r | ({"run": wait} if r["when"]["role"] == role else {}) for r in others))
    engine = world.begin("sprint", "goal", "--yes")
    wait_for(partial(times, "at work", world), f"the {role} at work")
    kill(*([engine.pid] if engine_too else []), *shims(world))
    if engine_too:
        engine.wait()
        assert world.run("resume") == 0, world.log()
    else:
        assert engine.wait(60) == 0, world.log()

    assert times("at work", world) == 2
    assert failures(world) == 0
    assert_done(world)


def test_work_of_an_agent_that_ended_without_an_engine_is_used(world: World) -> None:
    world.script(PLANNER, writes("a", run="echo worked", sleep_s=0.5), REVIEW)
    engine = world.begin("sprint", "goal", "--yes")
    wait_for(partial(at_work, world), "an agent at work")
    kill(engine.pid)
    engine.wait()
    wait_for(lambda: not shims(world), "the end of the agent")

    assert world.run("resume") == 0, world.log()

    assert times("worked", world) == 1
    assert_done(world)


def test_what_an_agent_had_written_when_it_was_killed_is_kept_under_a_salvage_ref(
    world: World,
) -> None:
    half = writes("a", {"half.txt": "half of it\n"}, attempt=1, run="echo written; sleep 60")
    world.script(PLANNER, half, writes("a"), REVIEW)
    engine = world.begin("sprint", "goal", "--yes")
    wait_for(partial(times, "written", world), "some work")
    kill(engine.pid, *shims(world))
    engine.wait()

    assert world.run("resume") == 0, world.log()

    ((payload,),) = world.rows("SELECT payload FROM events WHERE type = 'work_salvaged'")
    kept = json.loads(payload)["ref"]
    assert (world.project() / "mirror.git" / kept).exists()
    assert_done(world)


def test_a_frozen_agent_whose_lease_was_taken_back_is_ended_by_the_next_engine(
    world: World,
) -> None:
    """The engine that took the lease back died before it could stop the agent."""
    slow = writes("a", attempt=1, sleep_s=600)
    world.script(PLANNER, slow, writes("a"), REVIEW)
    point = f"engine|interrupt.after_commit|1|{world.root}/killed"
    engine = world.begin("sprint", "goal", "--yes", CALORON_CRASH_AT=point)
    wait_for(partial(at_work, world), "an agent at work")
    (shim,) = shims(world, "-implement/")
    os.kill(shim, signal.SIGSTOP)
    assert engine.wait(60) == -signal.SIGKILL, world.log()
    assert shims(world, "-implement/") == [shim]

    assert world.run("resume") == 0, world.log()

    assert_done(world)


def test_work_that_is_not_in_main_is_noticed_whatever_the_status_says(world: World) -> None:
    world.script(PLANNER, writes("a"), REVIEW)
    assert world.run("sprint", "goal", "--yes") == 0, world.log()
    assert lost_work(world) == []
    world.work = {"a": {"a.txt": "a", "b.txt": "b"}}
    assert lost_work(world) == ["the work of a is lost: b.txt on main has no line 'b'"]
    world.work = {}
    assert lost_work(world) == ["the test does not say what a brings"]
