"""The shell as programs call it: its HTTP interface, its agents and its stored state."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.git import git, new_repository
from tests.support.shell import LiveShell
from tests.support.wait import wait_for

WRITES = {
    "responses": [
        {
            "output": "did it",
            "files": {"a.txt": "hello\n"},
            "report": {"tokens_in": 3, "tokens_out": 4},
        }
    ]
}
SLEEPS = {"responses": [{"output": "waiting", "sleep_s": 600}]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return new_repository(tmp_path / "shop")


@pytest.fixture
def shell(tmp_path: Path, root: Path) -> Iterator[LiveShell]:
    live = LiveShell(tmp_path / "home", root, WRITES).start()
    yield live
    for row in live.get("/status")["agents"] if not live.gone() else ():
        live.post("/stop", sprint_id=row["sprint_id"], agent_id=row["agent_id"], grace_s=0)
    live.stop()


def test_the_answers_keep_their_published_form(shell: LiveShell) -> None:
    assert shell.call("GET", "/health", token="") == (200, "ok")
    assert shell.get("/status") == {"agents": []}
    answer = shell.post("/heartbeat", agent_id="x", sprint_id="s")
    assert answer == {"ok": True}
    spawned = shell.spawn()
    assert set(spawned) == {"ok", "pid"}
    shell.ended()
    (row,) = shell.get("/status")["agents"]
    assert set(row) == {"agent_id", "sprint_id", "pid", "alive", "last_heartbeat"}
    assert (row["pid"], row["alive"]) == (spawned["pid"], False)
    refused = shell.spawn(repo="nowhere")
    assert set(refused) == {"ok", "error"}
    assert "not a git repository" in refused["error"]


def test_an_invalid_request_is_answered_and_changes_nothing(shell: LiveShell) -> None:
    for token in ("", "wrong", "a-token-of-the-test"):
        code, answer = shell.call("GET", "/status", token=token)
        assert (code, answer["ok"]) == (401, False)
    assert shell.call("GET", "/nowhere")[0] == 404
    assert shell.call("GET", "/spawn")[0] == 405
    assert shell.call("POST", "/status", {})[0] == 405
    assert shell.call("BREW", "/status")[0] == 501
    assert shell.call("POST", "/spawn", raw=b"{nonsense")[0] == 400
    assert shell.call("POST", "/spawn", {"sprint_id": "../x"})[0] == 400
    assert shell.call("POST", "/heartbeat", raw=b"x" * (1 << 20) + b"x")[0] == 413
    assert shell.call("GET", "/logs?sprint_id=s&agent_id=a&offset=-1")[0] == 400
    assert shell.get("/status") == {"agents": []}
    with socket.create_connection(("127.0.0.1", shell.port)) as raw:
        raw.sendall(b"POST /heartbeat HTTP/1.1\r\nX-Caloron-Token: a-token-of-the-tests\r\n\r\n")
        assert b"411" in raw.recv(100)


def _half_open(port: int, sent: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 20)
    connection.sendall(sent)
    return connection


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /health HTTP/1.1\r\nX-Slow: ",
        b"POST /spawn HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{",
    ],
    ids=["silent", "in the head", "in the body"],
)
def test_unfinished_requests_do_not_block_the_shell(shell: LiveShell, sent: bytes) -> None:
    slow = [_half_open(shell.port, sent) for _ in range(200)]
    try:
        assert shell.call("GET", "/health", token="") == (200, "ok")
        assert shell.get("/status") == {"agents": []}
    finally:
        for connection in slow:
            connection.close()


def test_an_agent_works_in_a_clone_and_its_commits_become_a_branch(
    shell: LiveShell, root: Path
) -> None:
    shell.spawn(task_description="Write a.txt")
    row = shell.ended()
    assert (row["exit_code"], row["status"], row["tokens_used"]) == (0, "completed", 7)
    assert git(root, "show", "agent/ann/s-1:a.txt") == "hello"
    assert git(root, "log", "-1", "--format=%s", "agent/ann/s-1") == "[ann] Complete t-1"
    assert git(root, "status", "--porcelain") == ""
    assert git(root, "worktree", "list").count("\n") == 0
    logs = shell.get("/logs", sprint_id="s-1", agent_id="ann", offset=4, limit=2)
    assert (logs["text"], logs["next_offset"], logs["size"]) == ("it", 6, 7)
    past = shell.get("/logs", sprint_id="s-1", agent_id="ann", offset=10**6)
    assert (past["text"], past["next_offset"]) == ("", 7)
    log = shell.get("/logs", sprint_id="s-1", agent_id="ann", stream="harness")
    assert "ann is done" in log["text"]


def test_an_agent_is_confined_and_has_no_token(shell: LiveShell, root: Path) -> None:
    script = "env > seen.txt; ls / >> seen.txt; cat /proc/1/environ >> seen.txt; true"
    shell.agents_do({"responses": [{"output": "looked", "run": script}]})
    shell.spawn()
    assert shell.ended()["exit_code"] == 0
    seen = git(root, "show", "agent/ann/s-1:seen.txt")
    assert "CALORON_SANDBOXED=1" in seen
    assert "CALORON_TASK_ID=t-1" in seen
    for secret in ("a-token-of-the-tests", "ghp_must_never_reach_an_agent", str(shell.home)):
        assert secret not in seen


def test_a_harness_gets_no_forge_token(tmp_path: Path, root: Path) -> None:
    """The harness uses models and no forge, so it gets no forge token under any variable name."""
    live = LiveShell(tmp_path / "home", root, SLEEPS)
    tokens = {
        name: f"planted-token-{number}"
        for number, name in enumerate(
            ("CALORON_GITEA_TOKEN", "CALORON_HOOK", "CLAUDE_OF_THE_FORGE", "ANTHROPIC_REVIEWS")
        )
    }
    live.env = tokens | {"ANTHROPIC_API_KEY": "sk-ant-for-the-model"}
    project = live.home / "projects" / "shop"
    project.mkdir(parents=True)
    (project / "config.yml").write_text(
        "name: shop\nforge: gitea\nhost: http://127.0.0.1:3000\nrepo: me/shop\n"
        "token_env: CLAUDE_OF_THE_FORGE\nreviewer_token_env: ANTHROPIC_REVIEWS\n"
        "webhook_secret_env: CALORON_HOOK\n"
    )
    live.start()
    try:
        pid = live.spawn()["pid"]
        environment = Path(f"/proc/{pid}/environ").read_text()
        assert "sk-ant-for-the-model" in environment
        assert f"CALORON_HOME={live.home}" in environment
        assert [name for name, value in tokens.items() if value in environment] == []
        live.post("/stop", sprint_id="s-1", agent_id="ann", grace_s=0)
    finally:
        live.stop()


def test_a_running_agent_is_not_started_twice(shell: LiveShell) -> None:
    shell.agents_do(SLEEPS)
    with ThreadPoolExecutor(8) as many:
        answers = list(many.map(lambda _: shell.spawn(), range(8)))
    assert len({answer["pid"] for answer in answers}) == 1
    assert shell.agent()["run"] == 1
    other = shell.spawn(task="t-2")
    assert (other["ok"], "works on task t-1" in other["error"]) == (False, True)
    elsewhere = shell.spawn(sprint="s-2")
    assert elsewhere["pid"] != answers[0]["pid"]
    assert len(shell.get("/status")["agents"]) == 2


def test_agents_of_different_sprints_are_separate(shell: LiveShell) -> None:
    shell.post("/heartbeat", agent_id="ann", sprint_id="s-9", status="running")
    shell.spawn()
    row = shell.ended()
    assert row["sprint_id"] == "s-1"
    assert row["status"] == "completed"


def test_stopping_an_agent_commits_its_work(shell: LiveShell, root: Path) -> None:
    shell.agents_do({"responses": [{"run": "echo half > half.txt; sleep 600"}]})
    pid = shell.spawn()["pid"]
    half_file = Path(root, ".caloron/worktrees/ann-s-1/half.txt")
    wait_for(half_file.exists)
    answer = shell.post("/stop", sprint_id="s-1", agent_id="ann")
    assert answer == {"ok": True, "pid": pid, "stopped": True}
    row = shell.ended()
    assert (row["alive"], row["exit_code"]) == (False, 130)
    assert git(root, "show", "agent/ann/s-1:half.txt") == "half"
    again = shell.post("/stop", sprint_id="s-1", agent_id="ann")
    assert again["stopped"] is False
    assert shell.post("/stop", sprint_id="s-1", agent_id="nobody")["ok"] is False


def test_a_killed_harness_ends_its_agent_and_can_be_started_again(
    shell: LiveShell, root: Path
) -> None:
    shell.agents_do({"responses": [{"run": "echo 1 >> runs.txt; sleep 600"}]})
    pid = shell.spawn()["pid"]
    runs = root / ".caloron/worktrees/ann-s-1/runs.txt"
    wait_for(runs.exists)
    os.kill(pid, 9)
    row = shell.ended()
    assert (row["alive"], row["exit_code"]) == (False, 137)
    shell.agents_do({"responses": [{"run": "echo 2 >> runs.txt"}]})
    assert shell.spawn()["pid"] != pid
    assert shell.ended()["exit_code"] == 0
    assert git(root, "show", "agent/ann/s-1:runs.txt") == "1\n2"


def test_git_never_runs_in_the_workspace_of_an_agent(shell: LiveShell, root: Path) -> None:
    trap = root.parent / "sprung"
    plant = (
        f"git config core.fsmonitor 'touch {trap}; false'; git config uploadpack.packObjectsHook x"
    )
    shell.agents_do({"responses": [{"run": plant, "files": {"a.txt": "x\n"}}]})
    shell.spawn()
    shell.ended()
    for name in ("repo", "worktree_base"):
        answer = shell.spawn("bob", **{name: ".caloron/worktrees/ann-s-1"})
        assert "workspace of an agent" in answer["error"]
    shell.spawn()
    shell.ended()
    assert not trap.exists()


@pytest.mark.parametrize("folder", ["/etc", "/tmp", "out"])
def test_a_folder_outside_the_root_is_refused(shell: LiveShell, root: Path, folder: str) -> None:
    new_repository(root.parent / "outside")
    (root / "out").symlink_to(root.parent / "outside")
    for name in ("repo", "worktree_base"):
        assert "outside" in shell.spawn(**{name: folder})["error"]
    assert "files of a repository" in shell.spawn(repo=".git")["error"]
    assert "files of a repository" in shell.spawn(worktree_base=".git/x")["error"]
    assert shell.get("/status") == {"agents": []}


def test_graphs_can_read_heartbeats(shell: LiveShell) -> None:
    shell.post("/heartbeat", agent_id="ann", sprint_id="s-1", status="running", tokens_used=9)
    asked = '{"key": "caloron:s-1:agent:ann:last_heartbeat"}'
    done = subprocess.run(
        [sys.executable, "-m", "caloron.cli", "stage", "run", "kv_get", "--input", asked],
        env=os.environ | {"CALORON_HOME": str(shell.home)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.startswith('"20')


def test_only_one_shell_runs_in_a_home(shell: LiveShell, tmp_path: Path) -> None:
    env: dict[str, Any] = os.environ | {"CALORON_HOME": str(shell.home), "CALORON_SHELL_PORT": "0",
                                        "CALORON_SHELL_TOKEN": "t"}  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "caloron.cli", "serve"], env=env, cwd=tmp_path,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 5
    assert shell.process is not None
    assert f"process {shell.process.pid}" in done.stderr
