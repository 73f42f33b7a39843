"""`kill -9` of the shell: agents live on, none is started twice, and the status is right."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from caloron.agents.supervise.processes import read_process
from tests.support.git import new_repository
from tests.support.shell import LiveShell
from tests.support.wait import wait_for

_POINTS = [
    *(f"shell.reserve.{when}" for when in ("before_commit", "after_commit")),
    *(f"shell.place.{when}" for when in ("before_commit", "after_commit")),
    *(f"shell.started.{when}" for when in ("before_commit", "after_commit")),
]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[LiveShell]:
    root = new_repository(tmp_path / "shop")
    live = LiveShell(tmp_path / "home", root, {"default": "ok"})
    yield live
    live.env = {}
    if live.process is None or live.gone():
        live.start()
    for row in live.get("/status")["agents"]:
        live.post("/stop", sprint_id=row["sprint_id"], agent_id=row["agent_id"], grace_s=0)
    live.stop()


def _waits_for(file: str) -> dict[str, Any]:
    run = f"echo begun >> begun.txt; while [ ! -e {file} ]; do sleep 0.05; done; echo x > done.txt"
    return {"responses": [{"output": "done", "run": run, "report": {"tokens_out": 5}}]}


def _branch(shell: LiveShell, file: str) -> str:
    words = ["git", "-C", str(shell.root), "show", f"agent/ann/s-1:{file}"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def test_an_agent_outlives_its_shell_and_the_next_shell_recognises_it(shell: LiveShell) -> None:
    shell.agents_do(_waits_for("go"))
    pid = shell.start().spawn()["pid"]
    worktree = shell.root / ".caloron/worktrees/ann-s-1"
    wait_for((worktree / "begun.txt").exists)
    shell.post("/heartbeat", agent_id="other", sprint_id="s-1", status="kept")
    shell.kill()
    assert read_process(pid) is not None

    shell.start()
    row = shell.agent()
    assert (row["pid"], row["alive"], row["exit_code"]) == (pid, True, None)
    assert shell.spawn() == {"ok": True, "pid": pid}
    (worktree / "go").touch()
    row = shell.ended()
    assert (row["alive"], row["exit_code"]) == (False, 0)
    assert wait_for(lambda: shell.agent()["status"] == "completed")
    assert shell.agent()["tokens_used"] == 5
    assert _branch(shell, "begun.txt") == "begun\n"


def test_an_end_without_a_shell_is_reported_by_the_next_shell(shell: LiveShell) -> None:
    shell.agents_do(
        {"responses": [{"run": "while [ ! -e go ]; do sleep 0.05; done", "exit_code": 7}]}
    )
    pid = shell.start().spawn()["pid"]
    worktree = shell.root / ".caloron/worktrees/ann-s-1"
    wait_for(worktree.exists)
    shell.kill()
    (worktree / "go").touch()
    wait_for(lambda: (state := read_process(pid)) is None or state.state == "Z")
    row = shell.start().agent()
    assert (row["alive"], row["exit_code"], row["state"]) == (False, 7, "ended")


def test_a_process_with_the_reused_pid_of_an_agent_is_not_the_agent(shell: LiveShell) -> None:
    shell.start().spawn()
    shell.ended()
    shell.kill()

    database = sqlite3.connect(shell.home / "shell" / "shell.sqlite")
    database.execute("UPDATE agents SET state = 'running', pid = ?", (os.getpid(),))
    database.commit()
    database.close()
    row = shell.start().agent()
    assert (row["pid"], row["alive"]) == (os.getpid(), False)
    assert shell.post("/stop", sprint_id="s-1", agent_id="ann")["stopped"] is False


@pytest.mark.parametrize("point", _POINTS)
def test_a_shell_that_dies_while_it_starts_an_agent_leaves_at_most_that_agent(
    shell: LiveShell, point: str, tmp_path: Path
) -> None:
    shell.agents_do({"responses": [{"run": "echo begun >> begun.txt; sleep 600"}]})
    shell.env = {"CALORON_CRASH_AT": f"shell|{point}|1|{tmp_path / 'crashed'}"}
    shell.start()
    with pytest.raises((OSError, HTTPException)):
        shell.spawn()
    wait_for(shell.gone)
    shell.env = {}
    shell.start()
    rows = shell.get("/status", details=1)["agents"]
    # An agent without a record never gets through the gate.
    assert [row["alive"] for row in rows] in ([], [False])
    answer = shell.spawn()
    assert answer["ok"], answer
    worktree = shell.root / ".caloron/worktrees/ann-s-1"
    wait_for((worktree / "begun.txt").exists)
    assert shell.agent()["alive"]
    assert shell.post("/stop", sprint_id="s-1", agent_id="ann")["stopped"]
    assert _branch(shell, "begun.txt") == "begun\n"
