"""The composition `spawn_agent`, run against a real shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caloron.stages import catalogue
from tests.support.git import new_repository
from tests.support.shell import TOKEN, LiveShell

GRAPH = Path(catalogue.__file__).parent / "compositions" / "spawn_agent.json"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[LiveShell]:
    root = new_repository(tmp_path / "shop")
    live = LiveShell(tmp_path / "home", root, {"responses": [{"sleep_s": 600}]}).start()
    yield live
    for row in live.get("/status")["agents"]:
        live.post("/stop", sprint_id=row["sprint_id"], agent_id=row["agent_id"], grace_s=0)
    live.stop()


def _caloron(shell: LiveShell, *words: str, token: str = TOKEN) -> tuple[int, Any]:
    env = os.environ | {"CALORON_HOME": str(shell.home), "CALORON_SHELL_TOKEN": token}
    if not token:
        del env["CALORON_SHELL_TOKEN"]
    argv = [sys.executable, "-m", "caloron.cli", *words, "--output", "json"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


def _run(shell: LiveShell, token: str = TOKEN, **more: Any) -> tuple[int, Any]:
    inputs = {"shell_url": f"http://127.0.0.1:{shell.port}", "sprint_id": "s-1", "task_id": "t-1",
             "agent_id": "ann", "repo": ".", **more}  # fmt: skip
    inputs = {name: value for name, value in inputs.items() if value is not None}
    return _caloron(shell, "graph", "run", str(GRAPH), "--input", json.dumps(inputs), token=token)


def _pid(shell: LiveShell) -> Any:
    key = '{"key": "caloron:s-1:agent:ann:pid"}'
    return _caloron(shell, "stage", "run", "kv_get", "--input", key)[1]["data"]["output"]


def test_an_agent_is_started_and_its_pid_is_stored(shell: LiveShell) -> None:
    code, answer = _run(shell, worktree_base="trees")
    assert code == 0, answer
    row = shell.agent()
    assert (row["alive"], row["task_id"]) == (True, "t-1")
    assert answer["data"]["output"] == {"ok": True, "pid": row["pid"]}
    assert _pid(shell) == row["pid"]
    assert row["workspace"] == str(shell.root / "trees" / "ann-s-1")
    for file in (shell.home / "graph").rglob("*"):
        assert not file.is_file() or TOKEN.encode() not in file.read_bytes(), file


def test_a_refusal_of_the_shell_is_the_answer_and_no_pid_is_stored(shell: LiveShell) -> None:
    for answer in (_run(shell, repo="nowhere"), _run(shell, token="wrong")):
        assert answer[0] == 0, answer
        assert answer[1]["data"]["output"]["ok"] is False
    assert _pid(shell) is None


@pytest.mark.parametrize("missing", ["shell_url", "sprint_id", "task_id", "agent_id", "repo"])
def test_a_missing_input_is_reported_before_any_request(shell: LiveShell, missing: str) -> None:
    code, answer = _run(shell, TOKEN, **{missing: None})
    assert code == 2
    assert missing in answer["error"]["message"]
    assert shell.get("/status") == {"agents": []}


def test_without_a_token_no_request_is_made(shell: LiveShell) -> None:
    code, answer = _run(shell, token="")
    assert code == 12
    assert "Null" in answer["error"]["message"] or "null" in answer["error"]["message"]
    assert shell.get("/status") == {"agents": []}
