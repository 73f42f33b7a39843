"""A home of its own for each test, and `caloron` as a function."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from caloron.cli.app import main

Run = Callable[..., tuple[int, dict[str, Any]]]


def at_home(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALORON_HOME", str(place / "home"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(place / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (place / "gitconfig").write_text("[user]\n\tname = Ada\n")
    monkeypatch.chdir(place)
    return place / "home"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return at_home(tmp_path, monkeypatch)


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


def copy(source: Path, target: Path) -> None:
    # Not shutil: a project's wake is a named pipe.
    subprocess.run(["cp", "--archive", source, target], check=True)


@pytest.fixture(scope="session")
def one_sprint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with project `demo`, whose task `a` was rejected once, fixed and merged."""
    place = tmp_path_factory.mktemp("one-sprint")
    task = {"id": "a", "title": "Task a", "agent_prompt": "do a", "depends_on": []}
    answers = [
        {"when": {"role": "implement"}, "files": {"a.txt": "a\n"}, "output": "done"},
        {"when": {"role": "fix"}, "files": {"a.txt": "better\n"}, "output": "done"},
        {"when": {"role": "review", "round": 1}, "output": "CHANGES_NEEDED: make it better"},
        {"when": {"role": "review"}, "output": "APPROVED"},
    ]
    (place / "plan.json").write_text(json.dumps([task]))
    (place / "fixture.json").write_text(json.dumps({"responses": answers}))
    with pytest.MonkeyPatch.context() as patched:
        at_home(place, patched)
        patched.setenv("CALORON_STUB_FIXTURE", str(place / "fixture.json"))
        assert main(["init", "demo", "--framework", "stub"]) == 0
        begin = ["sprint", "go", "--project", "demo", "--plan", str(place / "plan.json"), "--yes"]
        assert main(begin) == 0
    copy(place / "home", place / "kept")
    return place


@pytest.fixture
def sprinted(home: Path, one_sprint: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Project `demo` with one sprint; made once, and as it was for each test.

    A home cannot be moved, since it knows its own place: so it lies where it was made, and the
    test's own home leads there.
    """
    shutil.rmtree(one_sprint / "home")
    copy(one_sprint / "kept", one_sprint / "home")
    home.symlink_to(one_sprint / "home")
    monkeypatch.setenv("CALORON_STUB_FIXTURE", str(one_sprint / "fixture.json"))
    return home / "projects" / "demo"
