"""`caloron cycle` on the command line: answers, refusals and dry runs."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from caloron.cli.app import main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALORON_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "home" / "cycles"


@pytest.fixture
def run(capsys):
    def run_line(line: str) -> tuple[int, dict]:
        capsys.readouterr()
        code = main(["cycle", *line.split(), "--output", "json"])
        return code, json.loads(capsys.readouterr().out)

    return run_line


def test_a_wake_from_begin_to_end(run, folder: Path) -> None:
    code, result = run("begin allegro --work issue-4")
    assert (code, result["data"]["report"]["outcome"]) == (0, "first")
    assert result["data"]["state_file"] == str(folder / "allegro.json")
    assert run("act allegro pushed --artefact branch")[1]["data"]["state"]["steps"] == 1
    assert run("end allegro --next review")[1]["data"]["state"]["status"] == "ended"
    events = [entry["event"] for entry in run("log allegro")[1]["data"]["entries"]]
    assert events == ["begin", "act", "end"]
    assert run("log allegro --cycle 9")[1]["data"]["entries"] == []


def test_refusals_have_their_own_codes(run) -> None:
    assert run("act allegro x")[0] == 8
    assert run("begin allegro")[0] == 0
    assert run("begin allegro")[0] == 5
    assert run("end allegro")[0] == 2
    assert run("act allegro x --cycle 7")[0] == 5
    assert run("recover allegro")[0] == 5
    assert run("recover allegro --force")[0] == 0
    assert run("stop allegro --reason enough")[0] == 0
    code, result = run("begin allegro")
    assert (code, result["error"]["code"]) == (11, "STOPPED")
    assert run("stop allegro --clear")[0] == 0
    assert run("begin allegro --pid 4194304000")[0] == 2
    assert run("begin .. ")[0] == 2


def test_damage_is_reported_beside_the_answer(run, folder: Path, capsys) -> None:
    run("begin allegro")
    (folder / "allegro.json").write_text("{")
    assert "cannot be used" in run("status allegro")[1]["data"]["notices"][0]
    assert main(["cycle", "recover", "allegro", "--dry-run"]) == 9
    assert "would repair" in capsys.readouterr().out
    assert main(["cycle", "act", "allegro"]) == 0
    assert "Cycle 1" in capsys.readouterr().out
    assert (folder / "allegro.json.damaged").read_text() == "{"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        *((f"{line} --dry-run", 9) for line in ("begin a", "act a x", "end a", "stop a")),
        ("recover a --force --dry-run", 9),
        ("status unknown", 0),
        ("log unknown", 0),
        ("recover unknown", 0),
        ("act unknown x", 8),
    ],
)
def test_a_dry_run_and_an_unknown_agent_create_no_files(run, folder, line, code) -> None:
    answered, result = run(line)
    assert (answered, result.get("dry_run", False)) == (code, code == 9)
    assert not folder.exists()


def test_a_cycle_whose_process_is_gone_can_neither_act_nor_end(run) -> None:
    child = os.fork()
    if not child:
        os._exit(main(["cycle", "begin", "allegro", "--pid", str(os.getpid())]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    code, result = run("status allegro")
    status = result["data"]
    assert (code, status["alive"], status["report"]["outcome"]) == (0, False, "crashed")
    for line in ("act allegro x", "act allegro", "end allegro --reason r"):
        code, result = run(line)
        assert code == 8
        assert result["error"]["message"] == f"cycle 1 of allegro is dead: process {child} is gone"
        assert "caloron cycle begin allegro" in result["error"]["hint"]
    assert run("begin allegro")[1]["data"]["report"]["reason"] == f"process {child} is gone"


def test_an_end_that_is_only_in_the_log_counts_with_a_notice(run, folder: Path) -> None:
    run("begin allegro")
    size = (folder / "allegro.log").stat().st_size + 200
    assert (folder / "allegro.json").stat().st_size > size

    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    ran = subprocess.run(
        [sys.executable, "-m", "caloron.cli", "cycle", "end", "allegro", "--reason", "r"],
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=full, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0, ran
    assert "Cycle 1 of allegro ended: success" in ran.stdout
    assert f"cannot write {folder / 'allegro.json'}" in ran.stderr
    assert f"it is in {folder / 'allegro.log'} and counts" in ran.stderr
    assert run("status allegro")[1]["data"]["report"]["outcome"] == "ended"
