"""One run per crash point: killed there, killed once more while it recovers, then compared."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.forms import done_twice, final_form, left_behind, lost_work
from tests.chaos.recorder import Point
from tests.chaos.world import World

SEED = 20_260_101
#: More than there are cores: a cell often waits for a lock, a poll or a lease.
_AT_ONCE = 3 * (os.cpu_count() or 1)
_RESUMES = 4
#: Prepared workspaces cost time and change no result: only every n-th cell has them.
_WITH_POOL = 4
_ENGINE_AFTER_A_SHIM = (
    "interrupt.before_commit",
    "interrupt.after_commit",
    "claim.after_commit",
    "settle.before_commit",
)


@dataclass
class Cell:
    """The result of one run."""

    point: Point
    second: Point
    killed: bool = False
    killed_again: bool = False
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        again = f", then at {self.second}" if self.killed_again else ""
        return f"killed at {self.point}{again}: " + "; ".join(self.problems)


def representatives(recorded: Iterable[tuple[Point, str]]) -> list[Point]:
    """Choose a point per durable form and kind of process, of the name chosen least so far."""
    classes: dict[tuple[str, str], list[Point]] = {}
    for point, form in recorded:
        classes.setdefault((point.kind, form), []).append(point)
    taken: Counter[str] = Counter()
    chosen = []
    for members in classes.values():
        point = min(members, key=lambda p: taken[p.name])
        taken[point.name] += 1
        chosen.append(point)
    return chosen


def run_cells(
    template: World, folder: Path, points: Iterable[Point], all_points: list[Point]
) -> list[Cell]:
    """Run the matrix, a few cells at a time."""
    expected = undisturbed(template, folder / "undisturbed")
    cells = [Cell(point, _second(point, all_points)) for point in points]

    def run_cell(numbered: tuple[int, Cell]) -> Cell:
        number, cell = numbered
        world = template.copy_to(folder / f"cell-{number}")
        world.set(pool=2 if number % _WITH_POOL == 0 else 0)
        began = time.monotonic()
        try:
            _run(world, cell, expected)
        except AssertionError as error:
            cell.problems.append(str(error))
        finally:
            world.kill_everything()
        cell.seconds = time.monotonic() - began
        if not cell.problems:
            shutil.rmtree(world.root)
        return cell

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(run_cell, enumerate(cells)))


def undisturbed(template: World, folder: Path) -> dict[str, Any]:
    world = template.copy_to(folder)
    assert world.run("sprint", "goal", "--yes") == 0, world.log()
    assert problems_of(world) == []
    return final_form(world)


def _second(point: Point, all_points: list[Point]) -> Point:
    """Choose where the recovery from a kill is killed itself: by a seed, the same in every run."""
    chance = random.Random(f"{SEED} {point}")
    if point.kind == "engine":
        names = sorted({p.name for p in all_points if p.kind == "engine"})
        return Point("engine", chance.choice(names), chance.randint(1, 3))
    if chance.random() < 0.5:
        return Point("engine", chance.choice(_ENGINE_AFTER_A_SHIM), 1)
    names = sorted({p.name for p in all_points if p.process == point.process} - {point.name})
    return Point(point.process, chance.choice(names), 1)


def _run(world: World, cell: Cell, expected: dict[str, Any]) -> None:
    first, again = world.root / "killed", world.root / "killed-again"
    if cell.point.kind == "engine":
        code = world.run("sprint", "goal", "--yes", CALORON_CRASH_AT=cell.point.at(first))
        then = cell.second.at(again)
    else:
        # The engine recovers from a dead shim, so both kills belong to the same run.
        both = f"{cell.point.at(first)};{cell.second.at(again)}"
        code = world.run("sprint", "goal", "--yes", CALORON_CRASH_AT=both)
        then = both
    resumes = 0
    while code == -signal.SIGKILL and resumes < _RESUMES:
        resumes += 1
        extra = {"CALORON_CRASH_AT": then}
        # Killed before the goal was recorded: there is nothing to resume, the user asks again.
        words = ("resume",) if world.goal_recorded() else ("sprint", "goal", "--yes")
        code = world.run(*words, **extra)
    cell.killed, cell.killed_again = first.exists(), again.exists()
    if code != 0:
        cell.problems.append(f"exit code {code}\n{world.log()}")
    cell.problems += problems_of(world)
    actual = final_form(world)
    cell.problems += [
        f"{name}: {actual[name]!r} instead of {expected[name]!r}"
        for name in expected
        if actual[name] != expected[name]
    ]


def problems_of(world: World) -> list[str]:
    """List remains that a finished sprint must never leave."""
    problems = [f"done twice: {key}" for key in done_twice(world)]
    problems += lost_work(world)
    problems += [f"left behind: {path}" for path in left_behind(world)]
    problems += [f"still running: {line}" for line in world.living().values()]
    return problems


def cpu_seconds() -> float:
    """Return the processor time of ended child processes: it says more than the elapsed time."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def summary(cells: list[Cell], recorded: int, classes: int) -> str:
    """The matrix in numbers."""
    killed = sum(cell.killed for cell in cells)
    again = sum(cell.killed_again for cell in cells)
    slowest = max(cell.seconds for cell in cells)
    failed = sum(bool(cell.problems) for cell in cells)
    return (
        f"{recorded} points recorded, {classes} classes, {len(cells)} cells run:"
        f" {killed} really killed, {again} killed again while recovering,"
        f" {len(cells) - killed} not reached, {failed} failed; slowest cell {slowest:.1f} s"
    )
