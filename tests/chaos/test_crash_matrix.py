"""`kill -9` at every crash point of the smallest sprint that has every effect."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.matrix import Cell, cpu_seconds, representatives, run_cells, summary
from tests.chaos.recorder import Point, record
from tests.chaos.world import World, new_world
from tests.support.git import git
from tests.support.home import does, task, writes

_ENOUGH = 0.8


_READING = "reading b"
_PUSHED = "pushed"


def smallest_sprint(folder: Path) -> World:
    """A planner, a → b; a is rejected once, and main moves under b while b is reviewed."""
    world = new_world(folder)
    world.person = _push_once
    world.work = {"a": {"a.txt": "more a"}, "b": {"b.txt": "b and theirs"}}
    world.script(*_responses(world.gates))
    return world


def _responses(shown: Path) -> list[dict[str, Any]]:
    waits = f"echo {_READING}; while [ ! -e {shown}/{_PUSHED} ]; do sleep 0.02; done"
    return [
        does("po", output=f"The plan:\n{json.dumps([task('a'), task('b', 'a')])}"),
        writes("a", output="done"),
        does("review", "a", round=1, output="CHANGES_NEEDED: more"),
        does("fix", "a", files={"a.txt": "more a\n"}, output="done"),
        writes("b", output="done"),
        does("review", "b", round=1, run=waits, output="APPROVED"),
        does("resolve", files={"b.txt": "b and theirs\n"}, output="done"),
        does("review", output="fine\nAPPROVED"),
    ]


def _push_once(world: World) -> None:
    """A person pushes to main, in conflict with b, while b is read by its reviewer."""
    done = world.gates / _PUSHED
    if done.exists() or not world.count_printed(_READING):
        return
    with tempfile.TemporaryDirectory(dir=world.root, prefix="clone-") as folder:
        clone = Path(folder, "c")
        if "b.txt" not in git(world.forge_git, "ls-tree", "--name-only", "main").split():
            git(world.root, "clone", "--quiet", "--branch", "main", world.forge_git, clone)
            (clone / "b.txt").write_text("theirs\n", "utf-8")
            git(clone, "add", "b.txt")
            git(clone, "commit", "--quiet", "-m", "Ada writes b too")
            git(clone, "push", "--quiet", "origin", "HEAD:main")
    done.touch()


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
