"""Runs that outlive the process that started them, and crashes of the shim at each crash point."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from caloron.agents.supervise import launch
from caloron.errors import InUse
from tests.integration.agents.conftest import Attempt
from tests.support.wait import process_lives, wait_for

STARTER = """
import json, os, sys, time
from pathlib import Path
from caloron.agents.supervise import launch
launch.start(Path(sys.argv[1]), json.loads(sys.argv[2]))
print("started", flush=True)
time.sleep(1000)
"""


def test_another_process_adopts_a_run_after_its_starter_died(attempt: Attempt) -> None:
    spec = attempt.spec(("sh", "-c", "echo ready; until test -e go; do sleep 0.05; done; echo end"))
    starter = subprocess.Popen(
        (sys.executable, "-c", STARTER, str(attempt.run_dir), json.dumps(spec)),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(launch.__file__).parents[2])},
        start_new_session=True,
    )
    assert starter.stdout is not None
    assert starter.stdout.readline() == b"started\n"
    attempt.wait_for_output("ready")
    os.killpg(starter.pid, signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    assert launch.is_alive(attempt.run_dir)
    attempt.renewals(2)
    (attempt.workspace / "go").touch()
    launch.wait_until_gone(attempt.run_dir)
    assert (attempt.result() or {})["last_line"] == "end"


def test_a_run_directory_has_one_shim_at_a_time(attempt: Attempt) -> None:
    attempt.start_sleeping()
    with pytest.raises(InUse, match="already running"):
        launch.start(attempt.run_dir, attempt.spec(("true",)))
    assert process_lives(attempt.agent())


def test_a_sandbox_without_its_outer_process_is_ended_after_its_shim_died(
    attempt: Attempt,
) -> None:
    """A sandbox that is killed during its creation does not notice the end of its outer process."""
    attempt.start_sleeping()
    assert attempt.shim is not None
    argv = ["sleep", "1000.25"]
    spec = json.loads((attempt.run_dir / "spec.json").read_bytes())
    spec |= {"argv": argv, "sandbox_depth": 2}
    (attempt.run_dir / "spec.json").write_text(json.dumps(spec))
    inner = subprocess.Popen(argv, start_new_session=True)
    stranger = subprocess.Popen(("sleep", "1000.75"), start_new_session=True)
    try:
        attempt.shim.kill()
        attempt.shim.wait()
        launch.reap(attempt.run_dir)
        assert inner.wait(30) == -signal.SIGKILL
        assert stranger.poll() is None
    finally:
        inner.kill()
        stranger.kill()
        inner.wait()
        stranger.wait()


def test_a_run_that_never_started_is_not_alive_and_can_be_stopped(tmp_path: Path) -> None:
    assert not launch.is_alive(tmp_path / "nothing")
    launch.wait_until_gone(tmp_path / "nothing")
    launch.stop(tmp_path / "nothing")


def test_a_shim_can_be_stopped_while_it_starts(attempt: Attempt) -> None:
    attempt.start_shell("exec sleep 1000")
    launch.stop(attempt.run_dir)
    assert not launch.is_alive(attempt.run_dir)
    assert attempt.result() is None
    agent = attempt.identity().get("agent_pid")
    assert not agent or not process_lives(agent)


@pytest.mark.parametrize(
    ("point", "attempts", "has_result"),
    [
        ("shim.lock", 0, False),
        ("file.temp", 0, False),
        ("file.rename", 0, False),
        ("shim.spawn", 0, False),
        ("shim.begin.before_commit", 0, False),
        ("shim.begin.after_commit", 1, False),
        ("shim.renew.before_commit", 1, False),
        ("shim.renew.after_commit", 1, False),
        ("shim.exit", 1, False),
        ("shim.result.before_commit", 1, False),
        ("shim.result.after_commit", 1, True),
        ("shim.result", 1, True),
    ],
)
def test_a_shim_killed_at_any_boundary_leaves_no_agent_and_a_result_or_none(
    attempt: Attempt,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    attempts: int,
    has_result: bool,
) -> None:
    once = attempt.home / "killed"
    monkeypatch.setenv("CALORON_CRASH_AT", f"shim/task-1|{point}|1|{once}")
    attempt.start_shell("sleep 1000 & echo $! > child; env > seen; sleep 0.6")
    launch.wait_until_gone(attempt.run_dir)
    assert attempt.shim is not None
    assert attempt.shim.wait() == -signal.SIGKILL
    assert once.exists()
    launch.reap(attempt.run_dir)
    agent = attempt.identity().get("agent_pid")
    assert not agent or not process_lives(agent)
    child = attempt.workspace / "child"
    assert not child.exists() or not child.read_text() or not process_lives(int(child.read_text()))
    seen = attempt.workspace / "seen"
    assert not seen.exists() or "CRASH" not in seen.read_text()
    assert attempt.lease()["attempt"] == attempts
    assert (attempt.result() is not None) is has_result


def test_an_agent_never_runs_before_its_id_is_recorded(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = attempt.home / "killed"
    monkeypatch.setenv("CALORON_CRASH_AT", f"shim/task-1|file.temp|2|{once}")
    attempt.start_shell("touch ran")
    launch.wait_until_gone(attempt.run_dir)
    assert once.exists()
    wait_for(lambda: not attempt.identity()["agent_pid"], "the second writing was cut off")
    assert not (attempt.workspace / "ran").exists()
