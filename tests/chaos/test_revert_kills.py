"""`kill -9` while a merge that turned main red is taken out again: every artefact exactly once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.chaos.forms import final_form
from tests.chaos.matrix import representatives, run_cells
from tests.chaos.recorder import Point, record
from tests.chaos.world import World, new_world
from tests.support import blind_forge
from tests.support.home import does, task, writes

AT_MOST_ONE_PART = "test $(ls parts 2>/dev/null | wc -l) -le 1"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = new_world(tmp_path_factory.mktemp("revert") / "template", verify=AT_MOST_ONE_PART)
    world.work = {"a": {"parts/both": "both"}}
    world.program = (sys.executable, str(Path(blind_forge.__file__)))
    world.script(
        does("po", output=json.dumps([task("a")])),
        writes("a", {"parts/a": "a\n"}),
        does("fix", run="rm parts/*; echo both > parts/both"),
        does("review", output="fine\nAPPROVED"),
    )
    return world


def _from_the_merge_on(recorded: list[tuple[Point, str]]) -> list[tuple[Point, str]]:
    """The steps of the effects from our merge on until the agent goes on."""
    merges = [n for n, (_, form) in enumerate(recorded) if '"merge", "intended"' in form]
    last = max(n for n, (_, form) in enumerate(recorded) if '"unverified"' in form)
    first = min(merges)
    between = recorded[first : last + 5]
    return [(point, form) for point, form in between if point.name.startswith("effect.")]


def test_a_kill_at_any_step_of_a_revert_repeats_nothing(
    template: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = template.copy_to(tmp_path / "recorded")
    recorded, code = record(world)
    assert code == 0, world.log()
    form = final_form(world)
    assert sorted((key, state) for key, state, _, _ in form["pulls"]) == [
        ("pull/demo-1/a/1", "merged"),
        ("pull/demo-1/a/2", "merged"),
        ("revert-pull/demo-1/a/1", "merged"),
    ]
    points = representatives(_from_the_merge_on(recorded))
    cells = run_cells(template, tmp_path / "cells", points, [point for point, _ in recorded])
    with capsys.disabled():
        print(f"\n{len(cells)} cells, {sum(cell.killed for cell in cells)} killed")
    failed = [str(cell) for cell in cells if cell.problems]
    assert not failed, "\n\n".join(failed)
    assert sum(cell.killed for cell in cells) >= 0.8 * len(cells)
