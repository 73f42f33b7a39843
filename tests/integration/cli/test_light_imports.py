"""`caloron status` starts fast: it imports little beyond click and sqlite3.

A sprint imports no more than its way to main needs.
"""

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
    "caloron.agents", "caloron.domain.model.task", "caloron.domain.rules", "caloron.engine",
    "caloron.forge", "caloron.git",
    "caloron.ledger.ledger", "caloron.ledger.projects", "caloron.stages", "caloron.store.queue",
)  # fmt: skip
#: Rooms and modules without which a sprint goes from its plan to main.
NOT_FOR_A_SPRINT = (
    "httpx", "rich", "caloron.backup", "caloron.graph", "caloron.http", "caloron.models",
    "caloron.schedule", "caloron.server", "caloron.stages", "caloron.testing",
    "caloron.agents.sandbox.network", "caloron.agents.workspace.python_detection",
    "caloron.agents.workspace.setup_cache", "caloron.cli.commands.inspect",
    "caloron.cli.commands.project", "caloron.cli.render",
    "caloron.domain.rules.discard", "caloron.domain.rules.people.plan_issue",
    "caloron.domain.rules.people.state_file_edit", "caloron.engine.forge.access",
    "caloron.engine.graphs", "caloron.forge.api", "caloron.forge.remote", "caloron.git.checkout",
)  # fmt: skip
MOST_MODULES_OF_A_SPRINT = 171
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
def sprint(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The arguments of a sprint with two tasks, the second after the first."""
    plan = [
        {"id": "hello", "title": "Hello", "agent_prompt": "Write hello.", "depends_on": []},
        {"id": "bye", "title": "Bye", "agent_prompt": "Write bye.", "depends_on": ["hello"]},
    ]
    answers = [
        {
            "when": {"role": "implement", "task": task["id"]},
            "files": {f"{task['id']}.txt": "text\n"},
            "output": "done",
        }
        for task in plan
    ]
    answers.append({"when": {"role": "review"}, "output": "APPROVED"})
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "fixture.json").write_text(json.dumps({"responses": answers}))
    monkeypatch.setenv("CALORON_STUB_FIXTURE", str(tmp_path / "fixture.json"))
    caloron("init", "light", "--framework", "stub")
    file = str(tmp_path / "plan.json")
    return ("sprint", "Say hello", "--project", "light", "--plan", file, "--yes", "-o", "json")


def test_a_sprint_imports_only_what_its_way_to_main_needs(sprint: tuple[str, ...]) -> None:
    modules = modules_after(f"{CALORON.format(arguments=list(sprint))}; assert code == 0")
    ours = {name for name in modules if name.partition(".")[0] == "caloron"}
    assert {"caloron.engine.loop", "caloron.forge.local.forge"} <= ours
    assert modules.isdisjoint(NOT_FOR_A_SPRINT)
    assert len(ours) <= MOST_MODULES_OF_A_SPRINT


@pytest.mark.usefixtures("sprinted")
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
