"""The real Claude Code in the real sandbox, where it reaches only its scripted model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caloron.agents.clis.base import prepare_run
from caloron.agents.clis.claude import ClaudeCode
from caloron.agents.sandbox.bubblewrap import Bubblewrap
from caloron.agents.supervise.supervise import run
from caloron.ports import AgentReport
from tests.support.claude import claude
from tests.support.model_server import ModelServer, Rule, bash, write

_KEY = "sk-ant-planted-key-4711"
_PATIENCE_S = 120


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


class Agent:
    """Attempts of one agent, each with its own workspace and home."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runner = ClaudeCode()
        self.sandbox = Bubblewrap()
        self.runs = 0

    def ask(self, prompt: str, **fields: Any) -> AgentReport:
        self.runs += 1
        run_dir = self.root / f"run-{self.runs}"
        command, spec = prepare_run(
            self.runner, self.sandbox, run_dir, role="implement", prompt=prompt, **fields
        )
        confined = self.sandbox.confine(command.argv, spec)
        assert _KEY not in " ".join(confined.argv)
        done = run(confined, command.stdin.encode(), timeout_s=_PATIENCE_S)
        (run_dir / "output.log").write_bytes(done.stdout)
        (run_dir / "stderr.log").write_bytes(done.stderr)
        return self.runner.read_report(run_dir)


@pytest.fixture
def agent(tmp_path: Path, model: ModelServer, monkeypatch: pytest.MonkeyPatch) -> Agent:
    for name in ("ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CALORON_CLAUDE", str(claude()))
    monkeypatch.setenv("ANTHROPIC_API_KEY", _KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", model.url)
    return Agent(tmp_path)


def test_claude_code_works_in_its_workspace_and_continues_in_the_next_attempt(
    agent: Agent, model: ModelServer
) -> None:
    model.rules.append(
        Rule(("first",), [[write("/workspace/a.txt", "one\n")], [bash("pwd; ls")], ["Written."]])
    )
    report = agent.ask("first", instructions="BE-KIND")
    assert (report.text, report.trouble, report.detail) == ("Written.", "", "")
    assert (agent.root / "run-1" / "workspace" / "a.txt").read_text() == "one\n"
    assert "/workspace\na.txt" in model.requests[-1].text
    assert "BE-KIND" in model.requests[0].text
    home, sessions = agent.root / "run-1" / "home", agent.root / "sessions"
    assert agent.runner.save_session(home, sessions, report.session)
    again = agent.ask("second", session=report.session, sessions=sessions)
    assert (again.text, again.session) == ("Done.", report.session)
    assert "Written." in model.requests[-1].text


def test_tools_of_claude_code_reach_neither_the_user_nor_another_port(
    agent: Agent, model: ModelServer, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the user's own")
    with ModelServer() as other:
        asks = f"import urllib.request as r; r.urlopen('{other.url}', timeout=5)"
        line = f'cat {secret}; python3 -c "{asks}"; python3 -c "print(6*7)"; echo "I am $(id -un)"'
        model.rules.append(Rule(("line",), [[bash(line)], ["Checked."]]))
        report = agent.ask("line")
    assert report.text == "Checked."
    output = model.requests[-1].messages[-1]["content"][0]["content"]
    assert "No such file" in output
    assert "the user's own" not in output
    assert "Connection refused" in output
    assert "42\nI am agent" in output
