"""`kill -9` at every moment of a durable run, in real processes: the end is always the same."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from caloron.graph.storage.journal import SqliteJournal

_ROOT = Path(__file__).parents[2]
_NEVER = 10**6


def _process(directory: Path, kill_at: int = _NEVER) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.support.durable_child", str(directory), str(kill_at)],
        cwd=_ROOT,
        env={"PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )


def _effects(directory: Path) -> Counter[str]:
    log = directory / "effects"
    return Counter(log.read_text().split() if log.exists() else [])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Counter[str]]:
    directory = tmp_path_factory.mktemp("undisturbed")
    ended = _process(directory)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout), _effects(directory)


def _recorded(directory: Path, keys: Counter[str]) -> set[str]:
    journal = SqliteJournal(directory)
    recorded = {key for key in keys if journal.recorded("run", key) is not None}
    journal.close()
    return recorded


@pytest.mark.parametrize("part", range(6))
def test_a_run_killed_at_any_moment_has_the_undisturbed_result_when_resumed(
    part, undisturbed, tmp_path
):
    expected, effects = undisturbed
    assert expected["moments"] > 40
    for moment in range(part, expected["moments"], 6):
        directory = tmp_path / str(moment)
        directory.mkdir()
        assert _process(directory, moment).returncode == -signal.SIGKILL
        before = _recorded(directory, effects)
        resumed = _process(directory)
        assert resumed.returncode == 0, resumed.stderr
        result = json.loads(resumed.stdout)
        assert result["output"] == expected["output"]
        assert result["trace"] == expected["trace"]
        done = _effects(directory)
        assert set(done) == set(effects)
        assert all(done[key] == 1 for key in before), "a recorded effect was repeated"
        # Only calls under way when the process died may have been made twice.
        assert sum(done.values()) <= sum(effects.values()) + 2


def test_a_run_that_is_killed_repeatedly_still_finishes(undisturbed, tmp_path):
    expected, _ = undisturbed
    for _ in range(expected["moments"]):
        ended = _process(tmp_path, 6)
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL
    assert json.loads(ended.stdout)["output"] == expected["output"]
