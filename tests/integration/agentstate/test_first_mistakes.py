"""Frequent mistakes of people and hosts: a helpful message, and no new files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from caloron.agentstate.instance import AgentInstance
from tests.integration.agentstate.conftest import CALORON, called


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is also the current folder."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "people"))
    monkeypatch.setenv("MF_INSTANCE_DIR", str(folder))
    return folder


@pytest.mark.parametrize(
    "line",
    [
        "events append --type x --payload {} --work-item-id ghost", "dashboard regen",
        "retro weekly", "hook onStart", "hook onShutdown", "hook onMessageReplied",
        "hook onStateTransition", "errands claim --id a --owner b", "errands notes --id a",
        "errands list", "errands replay", "events tail", "errands pending", "events since 0",
        "errands next --owner b", "errands get --id a",
    ],
)  # fmt: skip
@pytest.mark.parametrize("below", ["", "missing"])
def test_a_command_in_an_empty_folder_creates_no_files(
    empty: Path, monkeypatch, line: str, below: str
) -> None:
    monkeypatch.setenv("MF_INSTANCE_DIR", str(empty / below))
    command = line.split()[1]
    reads = command in ("list", "replay", "tail", "pending", "since")
    result = called(*line.split())
    assert (result.code, result.lines) == (0 if reads else 1, [])
    assert reads or command == "get" or "scaffold it" in result.err
    assert list(empty.iterdir()) == []


def test_a_tilde_is_the_home_of_the_user(empty: Path, monkeypatch) -> None:
    monkeypatch.setenv("MF_INSTANCE_DIR", "~/agents/forge")
    words = ("errands", "enqueue", "--kind", "x", "--id", "a", "--payload", "{}")
    assert called(*words).code == 0
    assert (empty.parent / "people" / "agents" / "forge" / "state.sqlite").exists()
    monkeypatch.setenv("MF_INSTANCE_DIR", "~no-such-user/x")
    refused = called(*words)
    assert refused.code == 2
    assert "MF_INSTANCE_DIR" in refused.err
    assert called("scaffold", "~no-such-user/x", "--host", "h", "--agent", "a").code == 2
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("errands", "errands needs a command: one of list, enqueue"),
        ("dashboard", "dashboard needs a command: one of regen"),
        ("errands clam", "errands has no clam; one of list"),
        ("errnds", "there is no script errnds; there are scaffold, errands"),
        ("", "no script was named"),
        ("errands claim --id a --owner b --lease-s 0", "--lease-s must be 1 second or more"),
        ("errands next --owner b --lease-s 0.5", "--lease-s must be 1 second or more"),
        ("errands renew --id a --token 1 --lease-s -3", "--lease-s must be a number of seconds"),
    ],
)
def test_a_usage_error_shows_the_correct_usage(empty: Path, line: str, message: str) -> None:
    result = called(*line.split())
    assert result.code == 2
    assert message in result.err
    assert list(empty.iterdir()) == []


def test_a_refusal_names_the_next_step_for_the_state_of_the_item(empty: Path) -> None:
    with AgentInstance(empty) as home:
        for item in ("waits", "busy", "parked", "over"):
            home.work_items.enqueue(item, "x", {})
        home.work_items.claim("busy", "forge")
        home.work_items.park("parked", "sure?")
        home.work_items.resolve("over", "done")
    for line, hint in (
        ("retry --id waits", "it waits already: errands claim --id waits"),
        ("reopen --id waits", "it waits already"),
        ("answer --id waits --answer x", "nothing was asked; to ask: errands park --id waits"),
        ("release --id waits", "claim it first"),
        ("answer --id busy --answer x", "errands release --id busy"),
        ("retry --id parked", "errands answer --id parked --answer"),
        ("retry --id over", "errands reopen --id over"),
        ("answer --id over --answer x", "errands reopen --id over"),
    ):
        result = called("errands", *line.split())
        assert result.code == 1
        assert hint in result.err, (line, result.err)


def test_a_folder_at_the_path_of_the_file_is_reported_as_a_folder(empty: Path) -> None:
    (empty / "state.sqlite").mkdir()
    for line in ("errands list", "errands next --owner b", "dashboard regen"):
        result = called(*line.split())
        assert result.code == 1
        assert "that is a folder and not a file" in result.err


@pytest.mark.parametrize("words", [("hook",), ("hook", "onStart")])
def test_the_help_of_a_hook_names_its_environment(empty: Path, words: tuple[str, ...]) -> None:
    result = "\n".join(called(*words, "--help").lines)
    for name in ("INSTANCE_DIR", "AGENT_NAME", "HOST", "TRIGGER_TYPE", "TRIGGER_PAYLOAD_JSON"):
        assert f"MF_{name}" in result


def test_a_closed_output_pipe_is_no_failure(empty: Path) -> None:
    with AgentInstance(empty) as home, home.db.transaction("test") as connection:
        connection.execute(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
            " INSERT INTO events (ts, type, payload) SELECT i, 'x', '{}' FROM n"
        )
    running = subprocess.Popen(
        [*CALORON, "agent-state", "events", "since", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"MF_INSTANCE_DIR": str(empty)},
    )
    assert running.stdout is not None
    assert running.stderr is not None
    assert running.stdout.readline().startswith(b"{")
    running.stdout.close()
    assert running.stderr.read() == b""
    assert running.wait(60) == 0
