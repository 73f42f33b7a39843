"""A storm: `kill -9` of engine, shims, sandboxes and git at any moment, and agents that fail.

`CALORON_STORM_SEED` repeats the choices of an earlier storm; the moments are the machine's.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from caloron.agents.supervise.processes import descendants
from tests.chaos.forms import final_form
from tests.chaos.matrix import SEED, problems_of
from tests.chaos.world import (
    PATIENCE_S,
    SPRINT,
    World,
    new_world,
    until_it_holds_the_project,
)
from tests.support.figures import record_figures
from tests.support.home import does, task

TASKS = [f"t{n}" for n in range(12)]
#: These tasks change the same file, so that all but the first are in conflict with main.
TOGETHER, REJECTED = TASKS[:3], TASKS[3:7]
KINDS = ("engine", "shim", "sandbox", "git", "all")
_WEIGHTS = (2, 3, 3, 4, 1)
#: A storm that never ends is a defect; no storm has needed a tenth of it.
_ROUNDS = 400


def _plan() -> list[dict[str, Any]]:
    """Nine tasks, and three tasks that each wait for one of the nine."""
    first, last = TASKS[:9], TASKS[9:]
    return [*map(task, first), *map(task, last, first)]


def _responses() -> list[dict[str, Any]]:
    """Responses of agents that fail, print nothing or change nothing, and work the next time."""
    writes = "echo $CALORON_TASK_ID > $CALORON_TASK_ID.txt"
    appends_to_shared_file = "echo $CALORON_TASK_ID >> together.txt"
    unmark = "sed -i -E '/^(<<<<<<<|=======|>>>>>>>)/d' together.txt"
    fixes = 'echo "$CALORON_TASK_ID fixed" > $CALORON_TASK_ID.txt'
    return [
        does("implement", TOGETHER, run=appends_to_shared_file, sleep_s=0.2),
        does("implement", TASKS[7], attempt=1, output="overloaded", exit_code=1),
        does("implement", run=writes, sleep_s=0.2),
        does("review", REJECTED, round=1, output="CHANGES_NEEDED: more"),
        does("fix", REJECTED[0], attempt=1, output="overloaded", exit_code=1),
        does("fix", REJECTED[1], attempt=1, output="nothing to do"),
        does("fix", REJECTED[2], attempt=1),
        does("fix", run=fixes, sleep_s=0.1),
        does("resolve", run=unmark),
        does("review", output="APPROVED"),
    ]


def _work() -> dict[str, dict[str, str]]:
    lines = {name: f"{name} fixed" if name in REJECTED else name for name in TASKS}
    return {
        name: {"together.txt" if name in TOGETHER else f"{name}.txt": line}
        for name, line in lines.items()
    }


class Storm:
    """A sprint under kills, from its start to its end."""

    def __init__(self, world: World, chance: random.Random, most: int) -> None:
        self._world = world
        self._chance = chance
        self._most = most
        self.kills: Counter[str] = Counter()
        #: The escalations that a person resolved.
        self.escalated: set[tuple[str, int, str]] = set()
        #: The number of sandboxes in which no process ever ran.
        self.unborn = 0

    def run(self) -> None:
        world = self._world
        first = ("sprint", "goal", "--plan", str(world.root / "plan.json"), "--yes")
        for _ in range(_ROUNDS):
            engine = world.begin(*(("resume",) if world.goal_recorded() else first))
            code = self._blow(engine)
            if code == 0:
                return
            self._resolve()
        raise AssertionError(f"not finished after {_ROUNDS} engines\n{world.log()}")

    def _blow(self, engine: subprocess.Popen[bytes]) -> int:
        """Kill processes repeatedly until the engine has ended; return its exit code."""
        until_it_holds_the_project(self._world, engine)
        while engine.poll() is None and self.kills.total() < self._most:
            with suppress(subprocess.TimeoutExpired):
                return engine.wait(self._chance.uniform(0.0, 0.4))
            kind = self._chance.choices(KINDS, _WEIGHTS)[0]
            victims = self._victims(kind, engine)
            self.kills[kind] += bool(sum(map(_kill, victims)))
        try:
            return engine.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the sprint hangs\n{self._world.log()}") from None

    def _victims(self, kind: str, engine: subprocess.Popen[bytes]) -> list[int]:
        """Return a process of this kind as soon as there is any, or all processes of this world."""
        if kind == "engine":
            return [engine.pid]
        give_up = time.monotonic() + 1
        while engine.poll() is None and time.monotonic() < give_up:
            pids = self._living(kind, engine.pid)
            if pids:
                return pids if kind == "all" else [self._chance.choice(pids)]
        return []

    def _living(self, kind: str, engine: int) -> list[int]:
        if kind == "git":
            return [pid for pid in descendants(engine) if _name(pid).startswith("git")]
        # A shim outlives its engine: all that names the folder of this world belongs to it.
        ours = self._world.living()
        shims = [pid for pid, line in ours.items() if "agents/supervise/shim.py" in line]
        if kind == "shim":
            return shims
        if kind == "sandbox":
            inside = [pid for shim in (engine, *shims) for pid in descendants(shim)]
            return [pid for pid in inside if _name(pid) == "bwrap"]
        return [engine, *ours]

    def _resolve(self) -> None:
        """Comment `resolved` on each escalation as a person."""
        world = self._world
        if not world.goal_recorded():
            return
        for issue in _escalations(world):
            self.escalated.add((str(world.root), issue["number"], issue["title"]))
            world.run("issue", "comment", str(issue["number"]), "resolved")


def _escalations(world: World) -> list[dict[str, Any]]:
    return [i for i in world.issues("open") if "caloron:escalated" in i["labels"]]


def _end_unborn(world: World) -> int:
    """End sandboxes that wait for their other half, which was killed before anything ran in them.

    Bubblewrap asks the kernel to end it with its parent only after that moment.
    """
    waiting = [
        pid
        for pid, line in world.living().items()
        if _name(pid) == "bwrap" and not descendants(pid)
    ]
    return sum(map(_kill, waiting))


def _name(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[list[World]]:
    made: list[World] = []
    yield made
    for world in made:
        world.kill_everything()


def _sprint(folder: Path, worlds: list[World], chance: random.Random, most: int) -> Storm:
    world = new_world(folder, verify="true", parallel=4)
    worlds.append(world)
    world.work = _work()
    world.script(*_responses())
    world.plan(*_plan())
    storm = Storm(world, chance, most)
    storm.run()
    storm.unborn = _end_unborn(world)
    form = final_form(world)
    assert form["phases"] == [(SPRINT, "ended")]
    assert form["statuses"] == dict.fromkeys(TASKS, "Done")
    assert form["open"] == (0, 0)
    assert problems_of(world) == [], world.log()
    assert world.run("state", "verify") == 0, world.log()
    return storm


@pytest.mark.parametrize(
    "kills", [25, pytest.param(500, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_a_storm_of_kills_loses_no_work_and_repeats_nothing(
    kills: int, tmp_path: Path, worlds: list[World], capsys: pytest.CaptureFixture[str]
) -> None:
    seed = os.environ.get("CALORON_STORM_SEED", str(SEED))
    chance = random.Random(seed)
    done: Counter[str] = Counter()
    escalated: set[tuple[str, int, str]] = set()
    sprints = unborn = 0
    while done.total() < kills:
        sprints += 1
        storm = _sprint(
            tmp_path / f"world-{sprints}", worlds, chance, min(kills - done.total(), 90)
        )
        done += storm.kills
        escalated |= storm.escalated
        unborn += storm.unborn
    with capsys.disabled():
        record_figures(
            f"a storm of kills, seed {seed}",
            {"sprints": sprints, "tasks": sprints * len(TASKS)}
            | dict(sorted(done.items()))
            | {"escalated": len(escalated), "sandboxes that never began": unborn},
        )
        print(*sorted(escalated), sep="\n")
    # An agent killed inside its sandbox counts as failed; a killed process of Caloron does not.
    others = [title for *_, title in escalated if "— the agent ended with exit code" not in title]
    assert others == []
