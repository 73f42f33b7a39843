"""`kill -9` at every crash point of the smallest sprint that has every effect."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.matrix import Cell, cpu_seconds, representatives, run_cells, summary
from tests.chaos.recorder import Point, record
from tests.chaos.smallest import smallest_sprint
from tests.chaos.world import World

_ENOUGH = 0.8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system in memory where one may be mounted, else a folder.

    What a killed process wrote is the kernel's, on a disk or not; only a power cut would differ.
    """
    folder = tmp_path_factory.mktemp("matrix")
    mount = ("mount", "-t", "tmpfs", "-o", "size=4g", "tmpfs", str(folder))
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    yield folder
    if mounted:
        subprocess.run(("umount", "--lazy", str(folder)), check=True)


@pytest.fixture(scope="module")
def template(folder: Path) -> World:
    return smallest_sprint(folder / "template")


@pytest.fixture(scope="module")
def recorded(template: World, folder: Path) -> list[tuple[Point, str]]:
    world = template.copy_to(folder / "recorded")
    points, code = record(world)
    assert code == 0, world.log()
    return points


def _judge(
    cells: list[Cell], recorded: list[tuple[Point, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    classes = len(representatives(recorded))
    with capsys.disabled():
        print(f"\n{summary(cells, len(recorded), classes)}")
    failed = [str(cell) for cell in cells if cell.problems]
    assert not failed, "\n\n".join(failed)
    assert sum(cell.killed for cell in cells) >= _ENOUGH * len(cells)


def test_a_kill_at_every_kind_of_moment_loses_nothing_and_repeats_nothing(
    template: World,
    recorded: list[tuple[Point, str]],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    began, used = time.monotonic(), cpu_seconds()
    chosen = representatives(recorded)
    cells = run_cells(template, folder / "reduced", chosen, [point for point, _ in recorded])
    with capsys.disabled():
        took, used = time.monotonic() - began, cpu_seconds() - used
        print(f"\nthe reduced matrix took {took:.0f} s, of which {used:.0f} s of CPU")
    _judge(cells, recorded, capsys)


@pytest.mark.long
def test_a_kill_at_every_crash_point_loses_nothing_and_repeats_nothing(
    template: World,
    recorded: list[tuple[Point, str]],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    points = [point for point, _ in recorded]
    cells = run_cells(template, folder / "every", points, points)
    _judge(cells, recorded, capsys)
