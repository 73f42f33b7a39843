"""`caloron status` starts fast: it imports little beyond click and sqlite3."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    "asyncio", "concurrent", "email", "hashlib", "http", "httpx", "logging", "msgspec", "rich",
    "shutil", "socket", "ssl", "subprocess", "tempfile", "unittest", "urllib.request", "yaml",
    "caloron.agents", "caloron.domain", "caloron.engine", "caloron.forge", "caloron.git",
    "caloron.ledger.ledger", "caloron.ledger.projects", "caloron.stages", "caloron.store.queue",
)  # fmt: skip
CALORON = "import sys; from caloron.cli.app import main; code = main({arguments!r})"


def run(code: str) -> str:
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def caloron(*arguments: str) -> str:
    return run(f"{CALORON.format(arguments=list(arguments))}; sys.exit(code)")


def modules_after(code: str) -> set[str]:
    answer = run(f"import sys; {code}; print(); print('@', *sys.modules)")
    return set(answer.rpartition("@")[2].split())


@pytest.fixture
def finished_sprint(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project whose one task is merged."""
    plan = [{"id": "hello", "title": "Hello", "agent_prompt": "Write hello.", "depends_on": []}]
    answers = [
        {"when": {"role": "implement"}, "files": {"hello.txt": "hello\n"}, "output": "done"},
        {"when": {"role": "review"}, "output": "APPROVED"},
    ]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "fixture.json").write_text(json.dumps({"responses": answers}))
    monkeypatch.setenv("CALORON_STUB_FIXTURE", str(tmp_path / "fixture.json"))
    caloron("init", "light", "--framework", "stub")
    caloron(
        "sprint", "Say hello", "--project", "light", "--plan", str(tmp_path / "plan.json"), "--yes"
    )


@pytest.mark.usefixtures("finished_sprint")
@pytest.mark.parametrize("arguments", [["status"], ["status", "-o", "json"], ["history"]])
def test_reading_a_finished_sprint_imports_little_beyond_click_and_sqlite3(arguments):
    modules = modules_after(f"{CALORON.format(arguments=arguments)}; assert code == 0")
    assert {"click", "sqlite3", "caloron.cli.project_view"} <= modules
    assert "msgspec" not in modules
    if arguments[0] == "status":
        assert modules.isdisjoint(HEAVY)
    others = {name.partition(".")[0] for name in modules - modules_after("import click, sqlite3")}
    assert others - set(sys.stdlib_module_names) == {"caloron"}


def test_help_imports_no_command():
    modules = modules_after(f"{CALORON.format(arguments=['--help'])}; assert code == 0")
    assert modules.isdisjoint({"yaml", "msgspec", "rich", "caloron.engine", "caloron.cli.commands"})
