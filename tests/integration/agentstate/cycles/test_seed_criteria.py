"""Each acceptance criterion of the cycle-state document, named by its text."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from caloron.cycles.report import breadcrumb
from caloron.store import files
from tests.integration.agentstate.conftest import CALORON
from tests.integration.agentstate.cycles.conftest import UNKNOWN, Agent

FIELDS = (
    "cycle_number", "last_action", "last_action_result", "work_in_progress", "timestamp",
    "next_target",
)  # fmt: skip


def cycle(home: Path, *words: str) -> tuple[int, dict]:
    """Run `caloron cycle …` as an agent of the fleet does."""
    (home / ".hermes").mkdir(parents=True, exist_ok=True)
    ran = subprocess.run(
        [*CALORON, "cycle", *words, "--output", "json"],
        env=os.environ | {"HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return ran.returncode, json.loads(ran.stdout)


def test_a_state_file_at_hermes_burn_state_allegro_json_tracks_the_six_fields(
    tmp_path: Path,
) -> None:
    cycle(tmp_path, "begin", "allegro", "--work", "issue 4")
    cycle(tmp_path, "act", "allegro", "opened PR 12", "--artefact", "PR 12")
    cycle(tmp_path, "end", "allegro", "--result", "partial", "--next", "answer the review")
    state = json.loads((tmp_path / ".hermes/burn-state/allegro.json").read_text("utf-8"))
    assert {name: state[name] for name in FIELDS if name != "timestamp"} == {
        "cycle_number": 1,
        "last_action": "opened PR 12",
        "last_action_result": "success",
        "work_in_progress": "issue 4",
        "next_target": "answer the review",
    }
    assert state["timestamp"].endswith("Z")
    assert state["result"] == "partial", "the result of the cycle is a field of its own"


def test_the_cycle_number_increases_monotonically(agent: Agent) -> None:
    assert [agent.whole_cycle() for _ in range(5)] == [1, 2, 3, 4, 5]


def test_the_state_file_is_written_then_renamed(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.whole_cycle()
    before = agent.places.state.read_bytes()
    seen: list[tuple[str, bool]] = []

    def watch(name: str, of: str = "") -> None:
        seen.append((name, agent.places.state.read_bytes() == before))

    monkeypatch.setattr(files, "crashpoint", watch)
    agent.cycles.begin(holder=UNKNOWN)
    assert [step for step in seen if step[0].startswith("file.")] == [
        ("file.temp", True), ("file.fsync", True), ("file.rename", False),
    ]  # fmt: skip


def test_on_wake_the_agent_reads_the_state_and_resumes_from_the_last_known_state(
    tmp_path: Path,
) -> None:
    cycle(tmp_path, "begin", "allegro", "--work", "issue 4")
    cycle(tmp_path, "act", "allegro", "pushed the branch")
    cycle(tmp_path, "end", "allegro", "--artefact", "branch x", "--next", "open the PR")
    code, woken = cycle(tmp_path, "begin", "allegro")
    assert code == 0
    report = woken["data"]["report"]
    assert report["cycle_number"] == 2
    assert (report["last_cycle"], report["outcome"]) == (1, "ended")
    assert report["work_in_progress"] == "issue 4"
    assert report["next_target"] == "open the PR"
    assert (
        "Cycle 1 ended as success; its last step: pushed the branch (success). It left: branch x."
        in report["text"]
    )
    assert "To do next: open the PR." in report["text"]


def test_cycle_reports_are_appended_to_hermes_burn_logs_allegro_log(tmp_path: Path) -> None:
    log = tmp_path / ".hermes/burn-logs/allegro.log"
    contents = []
    for words in (
        ("begin", "allegro"),
        ("act", "allegro", "x"),
        ("end", "allegro", "--reason", "r"),
    ):
        cycle(tmp_path, *words)
        contents.append(log.read_bytes())
    assert contents[1].startswith(contents[0])
    assert contents[2].startswith(contents[1])
    events = [json.loads(line) for line in contents[2].splitlines()]
    assert [(event["cycle"], event["event"]) for event in events] == [
        (1, "begin"), (1, "act"), (1, "end"),
    ]  # fmt: skip


def test_multi_cycle_tasks_leave_a_breadcrumb_for_their_issue_once_for_each_cycle(
    agent: Agent,
) -> None:
    # The key of a trace lets its publisher post it once on the forge.
    agent.cycles.begin(holder=UNKNOWN, work="issue 4")
    agent.cycles.act("pushed", artefact="branch x", next_target="open the PR")
    first = breadcrumb(agent.cycles.load().state)
    agent.cycles.end()
    agent.cycles.begin(holder=UNKNOWN)
    second = breadcrumb(agent.cycles.load().state)
    assert first is not None
    assert second is not None
    assert (first.task, first.key, second.key) == (
        "issue 4", "allegro/issue 4/1", "allegro/issue 4/2",
    )  # fmt: skip
    assert "- left: branch x" in first.text
    assert "- next: open the PR" in first.text
    assert "cut it smaller" not in second.text
    for _ in range(2):
        agent.cycles.end(reason="more to do")
        agent.cycles.begin(holder=UNKNOWN)
    fourth = breadcrumb(agent.cycles.load().state)
    assert fourth is not None
    assert "- more than 3 cycles: cut it smaller" in fourth.text
    agent.cycles.end(reason="done", work="")
    assert breadcrumb(agent.cycles.load().state) is None


def test_the_state_survives_a_restart_of_the_agent_even_by_kill(tmp_path: Path) -> None:
    code = (
        "import time\nfrom caloron.cycles import cycle\n"
        "c = cycle('allegro', work='issue 4')\nc.act('cloned the repository')\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    (tmp_path / ".hermes").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    refused, result = cycle(tmp_path, "begin", "allegro")
    assert refused == 5
    assert f"cycle 1 of allegro is held by process {process.pid}" in result["error"]["message"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    code_, woken = cycle(tmp_path, "begin", "allegro")
    assert code_ == 0
    report = woken["data"]["report"]
    assert (report["cycle_number"], report["last_cycle"], report["outcome"]) == (2, 1, "crashed")
    assert report["last_step"] == "cloned the repository"
    assert f"process {process.pid} is gone" in report["text"]
