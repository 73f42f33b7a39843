"""`kill -9` around every effect of a sprint on a real Gitea: artefacts exactly once."""

from __future__ import annotations

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.home import does, task, writes
from tests.chaos.matrix import SEED, goal_recorded
from tests.chaos.recorder import Point, record
from tests.chaos.world import World, new_world
from tests.support.figures import tell
from tests.support.gitea import Gitea, Repository
from tests.support.live import TOKEN, artefacts, done_twice

_AT_ONCE = 3 * (os.cpu_count() or 1)
_RESUMES = 4
#: An effect is intended, then done, then recorded. What follows a record is the next tick's, and
#: no matter of the forge: the other matrix has it.
_AROUND = ("effect.intend", "effect.do")
_SPRINT = ("sprint", "goal", "--yes", "--plan", "plan.json")


@dataclass
class Cell:
    """One run: where it is killed, where its recovery is, and what was wrong in the end."""

    point: Point
    again: Point
    killed: bool = False
    killed_again: bool = False
    problems: list[str] = field(default_factory=list)


def _world(place: Path, gitea: Gitea) -> World:
    """A project on the server whose sprint has every effect: issue, labels, pushes, a rejection."""
    robot = gitea.person("robot")
    repository = gitea.repository(robot)
    options = ("--forge", "gitea", "--host", gitea.url, "--repo", repository.full_name)
    world = new_world(place, *options, "--token-env", TOKEN, env={TOKEN: robot.token})
    world.script(
        writes("a"),
        does("review", "a", round=1, output="CHANGES_NEEDED: more"),
        does("fix", "a", files={"a.txt": "more a\n"}, output="done"),
        does("review", output="APPROVED"),
    )
    return world


def _copy(template: World, place: Path, gitea: Gitea) -> tuple[World, Repository]:
    world = template.copy_to(place)
    repository = gitea.repository(gitea.person("robot"))
    world.configure(repo=repository.full_name)
    world.write_plan(task("a"))
    return world, repository


def test_a_kill_around_any_effect_on_gitea_leaves_every_artefact_exactly_once(
    tmp_path: Path, gitea: Gitea, capsys: pytest.CaptureFixture[str]
) -> None:
    template = _world(tmp_path / "template", gitea)
    world, repository = _copy(template, tmp_path / "undisturbed", gitea)
    recorded, code = record(world, form=lambda _: "", sprint=_SPRINT)
    assert code == 0, world.log()
    expected = artefacts(repository)
    points = [p for p, _ in recorded if p.kind == "engine" and p.name in _AROUND]
    assert {p.name for p in points} == set(_AROUND)
    began = time.monotonic()

    def one(numbered: tuple[int, Point]) -> Cell:
        number, point = numbered
        cell = Cell(point, _again(point, points))
        world, repository = _copy(template, tmp_path / f"cell-{number}", gitea)
        try:
            _run(world, cell)
            cell.problems += _differences(artefacts(repository), expected)
            cell.problems += [f"there twice: {key}" for key in done_twice(repository)]
        except AssertionError as error:
            cell.problems.append(str(error))
        finally:
            world.kill_everything()
        return cell

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        cells = list(pool.map(one, enumerate(points)))
    killed, again = sum(c.killed for c in cells), sum(c.killed_again for c in cells)
    figures = {"cells": len(cells), "killed": killed, "killed again": again}
    with capsys.disabled():
        tell(
            "kill -9 around every effect",
            figures | {"failed": sum(bool(c.problems) for c in cells)}
            | {"seconds": round(time.monotonic() - began)},
        )  # fmt: skip
    failed = [f"{c.point}, then {c.again}: {'; '.join(c.problems)}" for c in cells if c.problems]
    assert not failed, "\n\n".join(failed)
    assert killed == len(cells)


def _again(point: Point, points: list[Point]) -> Point:
    """Where the recovery is killed itself: by a seed, the same in every run."""
    chance = random.Random(f"{SEED} gitea {point}")
    return Point("engine", chance.choice(sorted({p.name for p in points})), chance.randint(1, 2))


def _run(world: World, cell: Cell) -> None:
    first, second = world.place / "killed", world.place / "killed-again"
    code = world.run(*_SPRINT, CALORON_CRASH_AT=cell.point.at(first))
    for _ in range(_RESUMES):
        if code != -signal.SIGKILL:
            break
        words = ("resume",) if goal_recorded(world) else _SPRINT
        code = world.run(*words, CALORON_CRASH_AT=cell.again.at(second))
    cell.killed, cell.killed_again = first.exists(), second.exists()
    if code != 0:
        cell.problems.append(f"exit code {code}\n{world.log()}")


def _differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    return [
        f"{name}: {found[name]!r} instead of {expected[name]!r}"
        for name in expected
        if found[name] != expected[name]
    ]
