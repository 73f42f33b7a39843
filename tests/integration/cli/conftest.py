"""A separate home for each test, and `caloron` as a function."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from caloron.cli.app import EXIT_CODES, main


def at_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALORON_HOME", str(folder / "home"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(folder / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (folder / "gitconfig").write_text("[user]\n\tname = Ada\n")
    monkeypatch.chdir(folder)
    return folder / "home"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return at_home(tmp_path, monkeypatch)


class Run:
    """Runs `caloron …` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Run a command with `--output json`, and return its exit code and envelope."""
        self._capsys.readouterr()
        code = main([*arguments, "--output", "json"])
        envelope = json.loads(self._capsys.readouterr().out)
        assert envelope["ok"] is (code in (0, 9))
        return code, envelope

    def data(self, *arguments: str) -> Any:
        """Run a command that succeeds, and return its data."""
        code, envelope = self(*arguments)
        assert code == 0, envelope
        return envelope["data"]

    def refused(
        self, code: int, expected: str | tuple[str, ...], *arguments: str
    ) -> dict[str, Any]:
        """Run a command that fails with this code and these texts, and return its error."""
        exit_code, envelope = self(*arguments)
        error: dict[str, Any] = envelope["error"]
        assert (exit_code, error["code"]) == (code, EXIT_CODES[code][0]), envelope
        text = f"{error['message']}\n{error.get('hint', '')}"
        for part in (expected,) if isinstance(expected, str) else expected:
            assert part in text, envelope
        return error

    def text(self, *arguments: str) -> str:
        """Run a command that succeeds, and return the text that it prints for people."""
        self._capsys.readouterr()
        assert main([*arguments]) == 0
        return self._capsys.readouterr().out


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


def copy(source: Path, target: Path) -> None:
    # `shutil` cannot copy the named pipe that wakes a project.
    subprocess.run(["cp", "--archive", source, target], check=True)


@pytest.fixture(scope="session")
def one_sprint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with project `demo`, whose task `a` was rejected once, fixed and merged."""
    folder = tmp_path_factory.mktemp("one-sprint")
    task = {"id": "a", "title": "Task a", "agent_prompt": "do a", "depends_on": []}
    answers = [
        {"when": {"role": "implement"}, "files": {"a.txt": "a\n"}, "output": "done"},
        {"when": {"role": "fix"}, "files": {"a.txt": "better\n"}, "output": "done"},
        {"when": {"role": "review", "round": 1}, "output": "CHANGES_NEEDED: make it better"},
        {"when": {"role": "review"}, "output": "APPROVED"},
    ]
    (folder / "plan.json").write_text(json.dumps([task]))
    (folder / "fixture.json").write_text(json.dumps({"responses": answers}))
    with pytest.MonkeyPatch.context() as patched:
        at_home(folder, patched)
        patched.setenv("CALORON_STUB_FIXTURE", str(folder / "fixture.json"))
        assert main(["init", "demo", "--framework", "stub"]) == 0
        begin = ["sprint", "go", "--project", "demo", "--plan", str(folder / "plan.json"), "--yes"]
        assert main(begin) == 0
    copy(folder / "home", folder / "kept")
    return folder


@pytest.fixture
def sprinted(home: Path, one_sprint: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Project `demo` with one sprint, created once and restored for each test.

    A home contains its own path and cannot be moved, so the home of the test is a link to the
    folder in which the sprint ran.
    """
    shutil.rmtree(one_sprint / "home")
    copy(one_sprint / "kept", one_sprint / "home")
    home.symlink_to(one_sprint / "home")
    monkeypatch.setenv("CALORON_STUB_FIXTURE", str(one_sprint / "fixture.json"))
    return home / "projects" / "demo"
