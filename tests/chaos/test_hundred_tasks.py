"""A hundred tasks whose engine is killed every second or two, and now and then an agent's shim."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.forms import final_form
from tests.chaos.matrix import SEED, goal_recorded, problems_of
from tests.chaos.world import SPRINT, World, new_world, until_it_holds_the_project

TASKS = 100
CHAINS = 10
_ROUNDS = 1500


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = new_world(tmp_path / "world", verify="true", parallel=4)
    world.work = {name: {f"{name}.txt": name} for name in (f"t{n}" for n in range(TASKS))}
    yield world
    world.kill_everything()


def _plan() -> list[dict[str, object]]:
    """Ten chains of ten tasks."""
    return [
        {
            "id": f"t{n}",
            "title": f"Task {n}",
            "agent_prompt": f"write {n}",
            "depends_on": [f"t{n - CHAINS}"] if n >= CHAINS else [],
        }
        for n in range(TASKS)
    ]


def _shims(world: World) -> list[int]:
    return [pid for pid, line in world.living().items() if "agents/supervise/shim.py" in line]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@pytest.mark.long
def test_a_hundred_tasks_are_each_done_once_though_the_engine_is_killed_every_second(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    writes = 'echo "$CALORON_TASK_ID" > "$CALORON_TASK_ID.txt"'
    world.script(
        {"when": {"role": "implement"}, "run": writes, "output": "done"},
        {"when": {"role": "review"}, "output": "APPROVED"},
    )
    plan = world.root / "plan.json"
    plan.write_text(json.dumps(_plan()), "utf-8")
    engines = shims = 0
    first = ("sprint", "goal", "--plan", str(plan), "--yes")
    for _ in range(_ROUNDS):
        engine = world.begin(*(("resume",) if goal_recorded(world) else first))
        until_it_holds_the_project(world, engine)
        try:
            code = engine.wait(chance.uniform(1.0, 2.0))
            break
        except subprocess.TimeoutExpired:
            if chance.random() < 0.3 and (living := _shims(world)):
                _kill(chance.choice(living))
                shims += 1
            engine.kill()
            engine.wait()
            engines += 1
    else:
        raise AssertionError(f"not finished after {_ROUNDS} kills\n{world.log()}")

    with capsys.disabled():
        print(f"\n{TASKS} tasks: the engine was killed {engines} times, a shim {shims} times")
    assert code == 0, world.log()
    assert engines > 3
    _judge(world)


def _judge(world: World) -> None:
    names = [f"t{n}" for n in range(TASKS)]
    form = final_form(world)
    assert form["phases"] == [(SPRINT, "ended")]
    assert form["statuses"] == dict.fromkeys(names, "Done")
    assert [key for key, _, _ in form["issues"]] == sorted(f"issue/{SPRINT}/{n}" for n in names)
    assert {state for _, state, _ in form["issues"]} == {"closed"}
    assert [key for key, _, _, _ in form["pulls"]] == sorted(f"pull/{SPRINT}/{n}/1" for n in names)
    assert len(form["merges"]) == TASKS + 1
    assert len(form["comments"]) == len(form["reviews"]) == TASKS
    assert problems_of(world) == []
