"""The graphs that come with the program: named without a path, and run on a real project."""

from __future__ import annotations

from pathlib import Path

import pytest

from caloron.stages.compositions import composition, composition_names
from tests.integration.cli.conftest import Run
from tests.support.noether import wrapped


@pytest.mark.parametrize("name", composition_names())
def test_each_is_accepted_by_the_strict_rules_under_its_bare_name(run: Run, name: str) -> None:
    code, told = run("graph", "check", name)
    assert code == 0, told
    assert told["data"]["profile"] == "strict"
    assert run("graph", "id", f"{name}.json")[1]["data"] == run("graph", "id", name)[1]["data"]


def test_a_file_of_that_name_in_the_current_folder_wins(run: Run, tmp_path: Path) -> None:
    shipped = run("graph", "id", "full_cycle")[1]["data"]["composition_id"]
    (tmp_path / "full_cycle").mkdir()
    assert run("graph", "id", "full_cycle")[1]["data"]["composition_id"] == shipped
    (tmp_path / "full_cycle.json").write_text(wrapped({"op": "Const", "value": 42}))
    for name in ("full_cycle", "full_cycle.json"):
        assert run("graph", "run", name)[1]["data"]["output"] == 42
    (tmp_path / "full_cycle.json").unlink()
    assert run("graph", "id", "./full_cycle.json")[0] == 3


def test_a_name_that_means_nothing_is_told_which_ones_there_are(run: Run) -> None:
    code, told = run("graph", "check", "full_circle")
    assert code == 3
    assert "full_cycle, kickoff" in told["error"]["hint"]
    for name in ("../compositions/kickoff", "__init__", ""):
        assert composition(name) is None
