"""`kill -9` while a model analyses a sprint, and while its answer is recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.matrix import representatives, run_cells, summary
from tests.chaos.recorder import record
from tests.chaos.world import World, new_world
from tests.support.home import does, task, writes

ANSWER = {
    "themes": ["one task"],
    "improvements": [
        {
            "category": "Tooling",
            "priority": "low",
            "description": "Plan more at once",
            "evidence": "a was alone",
            "applies_when": "goals are small",
        }
    ],
    "learnings": [],
    "sentiment": "positive",
}


@pytest.fixture
def template(tmp_path: Path) -> World:
    world = new_world(tmp_path / "template")
    world.set(retro="model")
    world.work = {"a": {"a.txt": "a"}}
    world.script(
        does("po", output=json.dumps([task("a")])),
        writes("a"),
        does("review", output="APPROVED"),
        does("retro", output=json.dumps(ANSWER), report={"cost_usd": 0.5}),
    )
    return world


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_kill_during_the_retro_loses_no_answer_and_asks_a_bounded_number_of_times(
    template: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], every: bool
) -> None:
    recorded, code = record(template.copy_to(tmp_path / "record"))
    assert code == 0
    late = [(p, form) for p, form in recorded if _phase(form) in ("retro", "ended")]
    points, kinds = [point for point, _ in late], representatives(late)
    cells = run_cells(template, tmp_path, points if every else kinds, points)
    with capsys.disabled():
        print(f"\nretro: {summary(cells, len(late), len(kinds))}")
    assert not [str(cell) for cell in cells if cell.problems]
    assert any(cell.killed and cell.point.process.endswith("/1-retro") for cell in cells)
    assert any(cell.killed and cell.point.kind == "engine" for cell in cells)


def _phase(form: str) -> str:
    sprints = json.loads(form)["sprints"] if form else []
    return str(sprints[0][0]) if sprints else ""
