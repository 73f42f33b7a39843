"""`kill -9` at every crash point of the smallest sprint that has every effect."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.chaos.matrix import Cell, cpu_seconds, representatives, run_cells, told
from tests.chaos.recorder import Point, record
from tests.chaos.smallest import smallest_sprint
from tests.chaos.world import World

_ENOUGH = 0.8


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> World:
    return smallest_sprint(tmp_path_factory.mktemp("template") / "world")


@pytest.fixture(scope="module")
def recorded(template: World, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Point, str]]:
    world = template.copy_to(tmp_path_factory.mktemp("record") / "world")
    points, code = record(world)
    assert code == 0, world.log()
    return points


def _judge(
    cells: list[Cell], recorded: list[tuple[Point, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    classes = len(representatives(recorded))
    with capsys.disabled():
        print(f"\n{told(cells, len(recorded), classes)}")
    failed = [str(cell) for cell in cells if cell.problems]
    assert not failed, "\n\n".join(failed)
    assert sum(cell.killed for cell in cells) >= _ENOUGH * len(cells)


def test_a_kill_at_any_kind_of_moment_loses_nothing_and_does_nothing_twice(
    template: World,
    recorded: list[tuple[Point, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    began, used = time.monotonic(), cpu_seconds()
    chosen = representatives(recorded)
    cells = run_cells(template, tmp_path, chosen, [point for point, _ in recorded])
    with capsys.disabled():
        took, used = time.monotonic() - began, cpu_seconds() - used
        print(f"\nthe reduced matrix took {took:.0f} s, of which {used:.0f} s of CPU")
    _judge(cells, recorded, capsys)


@pytest.mark.long
def test_a_kill_at_every_single_crash_point_loses_nothing_and_does_nothing_twice(
    template: World,
    recorded: list[tuple[Point, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    points = [point for point, _ in recorded]
    cells = run_cells(template, tmp_path, points, points)
    _judge(cells, recorded, capsys)
