"""A home of its own for each test, and `caloron` as a function."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from caloron.cli.main import main

Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALORON_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (tmp_path / "gitconfig").write_text("[user]\n\tname = Ada\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `caloron … --output json`; gives the exit code and the envelope."""

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = main([*arguments, "--output", "json"])
        envelope = json.loads(capsys.readouterr().out)
        assert envelope["ok"] is (code in (0, 9))
        return code, envelope

    return run


@pytest.fixture
def sprinted(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Project `demo` with one sprint: task `a` was rejected once, fixed and merged."""
    task = {"id": "a", "title": "Task a", "agent_prompt": "do a", "depends_on": []}
    answers = [
        {"when": {"role": "implement"}, "files": {"a.txt": "a\n"}, "output": "done"},
        {"when": {"role": "fix"}, "files": {"a.txt": "better\n"}, "output": "done"},
        {"when": {"role": "review", "round": 1}, "output": "CHANGES_NEEDED: make it better"},
        {"when": {"role": "review"}, "output": "APPROVED"},
    ]
    (tmp_path / "plan.json").write_text(json.dumps([task]))
    (tmp_path / "fixture.json").write_text(json.dumps({"responses": answers}))
    monkeypatch.setenv("CALORON_STUB_FIXTURE", str(tmp_path / "fixture.json"))
    assert run("init", "demo")[0] == 0
    assert run("sprint", "go", "--plan", str(tmp_path / "plan.json"), "--yes")[0] == 0
    return tmp_path / "home" / "projects" / "demo"
