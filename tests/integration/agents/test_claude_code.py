"""The real Claude Code, started with its runner's command, against a scripted model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caloron.agents.clis.claude import ClaudeCode
from caloron.errors import PreconditionFailed, UsageError
from caloron.ports import AgentReport, AgentRequest
from tests.support.agent_requests import agent_request
from tests.support.claude import claude
from tests.support.http_server import HttpServer, Reply
from tests.support.model_server import (
    DROPPED,
    HANGS,
    STALLS,
    Fault,
    ModelServer,
    Rule,
    bash,
    overflow,
    too_many,
    unauthorized,
    write,
)
from tests.support.wait import wait_for

_KEY = "sk-ant-planted-key-4711"
#: Far longer than any test here takes.
_PATIENCE_S = 60


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: ModelServer) -> None:
    for name in ("ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CALORON_CLAUDE", str(claude()))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", _KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", model.url)
    monkeypatch.setenv("CLAUDE_CODE_MAX_RETRIES", "1")


class Agent:
    """Attempts of one agent in one workspace."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.workspace = root / "workspace"
        self.workspace.mkdir()
        self.runner = ClaudeCode()
        self.runs = 0

    def request(self, prompt: str, **fields: Any) -> AgentRequest:
        self.runs += 1
        return agent_request(self.workspace, self.root / f"run-{self.runs}", prompt, **fields)

    def ask(self, prompt: str, **fields: Any) -> AgentReport:
        """One whole attempt."""
        request = self.request(prompt, **fields)
        self.start(request).wait(_PATIENCE_S)
        return self.runner.read_report(request.run_dir)

    def start(self, request: AgentRequest, **environment: str) -> subprocess.Popen[bytes]:
        """Start the CLI as the shim does: clean environment, prompt and output in files."""
        command = self.runner.command(request)
        basis = {"PATH": os.environ["PATH"], "HOME": str(request.sandbox_home)}
        env = basis | command.env | command.secrets
        (request.run_dir / "stdin").write_text(command.stdin)
        with (
            (request.run_dir / "stdin").open() as stdin,
            (request.run_dir / "output.log").open("wb") as output,
            (request.run_dir / "stderr.log").open("wb") as errors,
        ):
            return subprocess.Popen(
                command.argv,
                stdin=stdin,
                stdout=output,
                stderr=errors,
                cwd=self.workspace,
                env=env | environment,
                start_new_session=True,
            )


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


def kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_plan_is_reported_with_its_usage_and_cost(agent: Agent, model: ModelServer) -> None:
    plan = '[{"id": "a", "title": "A", "agent_prompt": "write ä"}]'
    model.rules.append(Rule(("make a plan",), [[plan]]))
    report = agent.ask("make a plan")
    assert report.text == plan
    assert (report.tokens_in, report.tokens_out, report.turns) == (1000, 50, 1)
    assert (report.cost_usd or 0) > 0
    assert (report.stop_reason, report.trouble, report.detail) == ("end_turn", "", "")
    assert report.model
    assert report.session


def test_tool_calls_are_counted(agent: Agent, model: ModelServer) -> None:
    file = agent.workspace / "a.txt"
    steps = [[write(str(file), "hello\n")], [bash("cat a.txt"), bash("echo more >> a.txt")]]
    model.rules.append(Rule(("do it",), [*steps, ["It is done."]]))
    report = agent.ask("do it")
    assert file.read_text() == "hello\nmore\n"
    assert report.text == "It is done."
    assert report.tools == {"Write": 1, "Bash": 2}
    assert (report.tokens_in, report.tokens_out) == (3000, 150)
    assert list(agent.workspace.iterdir()) == [file]


def test_a_prompt_longer_than_a_command_line_arrives_complete(
    agent: Agent, model: ModelServer
) -> None:
    report = agent.ask("x" * 1_000_000 + " is the end")
    assert report.text == "Done."
    assert model.requests[0].prompt.count("x") >= 1_000_000


def test_a_saved_conversation_continues_in_another_home(agent: Agent, model: ModelServer) -> None:
    sessions = agent.root / "sessions"
    model.rules.append(Rule(("first",), [["My first answer."]]))
    begun = agent.ask("first")
    assert agent.runner.save_session(agent.root / "run-1" / "home", sessions, begun.session)
    gone_on = agent.ask("second", session=begun.session, sessions=sessions)
    assert gone_on.session == begun.session
    spoken = model.requests[-1].text
    assert "first" in spoken
    assert "My first answer." in spoken
    assert model.requests[-1].prompt == "second"


def test_a_killed_conversation_continues(agent: Agent, model: ModelServer) -> None:
    sessions = agent.root / "sessions"
    model.rules.append(Rule(("first",), [["I begin.", bash("echo begun; sleep 600")]]))
    model.rules.append(Rule(("go on",), [["I went on."]]))
    request = agent.request("first")
    process = agent.start(request)
    # The CLI writes its conversation a moment after it printed the message.
    wait_for(lambda: b"echo begun" in conversation(request.home), "the tool is called")
    kill(process)
    cut = agent.runner.read_report(request.run_dir)
    assert (cut.trouble, cut.detail) == ("crash", "it ended without a result")
    assert (cut.text, cut.tools, cut.cost_usd) == ("I begin.", {"Bash": 1}, None)
    assert cut.tokens_in == 1000
    assert agent.runner.save_session(request.home, sessions, cut.session)
    report = agent.ask("go on", session=cut.session, sessions=sessions)
    assert report.text == "I went on."
    assert "I begin." in model.requests[-1].text


def conversation(home: Path) -> bytes:
    return b"".join(file.read_bytes() for file in home.glob(".claude/projects/*/*.jsonl"))


def test_a_conversation_that_was_not_saved_starts_again(agent: Agent) -> None:
    lost = "0f8fad5b-d9cb-469f-a165-70867728950e"
    report = agent.ask("hello", session=lost, sessions=agent.root / "sessions")
    assert report.text == "Done."
    assert report.session not in ("", lost)


def test_a_refused_key_is_reported_as_such(agent: Agent, model: ModelServer) -> None:
    model.rules.append(Rule((), [["never"]], faults=[unauthorized()] * 9))
    report = agent.ask("hello")
    assert report.trouble == "auth"
    assert "Invalid API key" in report.detail
    assert report.cost_usd == 0


def test_a_rate_limit_ends_at_the_time_of_the_provider(agent: Agent, model: ModelServer) -> None:
    model.rules.append(Rule((), [["never"]], faults=[too_many(3)] * 9))
    before = time.time()
    report = agent.ask("hello")
    assert report.trouble == "rate_limit"
    assert before + 3 <= (report.reset_at or 0) <= time.time() + 3
    # The CLI does not wait for so long, and does not say how long it would have to.
    model.rules[:] = [Rule((), [["never"]], faults=[too_many(3600)] * 9)]
    asked = len(model.requests)
    report = agent.ask("hello")
    assert (report.trouble, report.reset_at) == ("rate_limit", None)
    assert len(model.requests) == asked + 1


def test_the_quota_of_a_subscription_reports_its_reset_time(
    agent: Agent, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("CLAUDE_CODE_OAUTH_TOKEN", "sk-ant-oat01-planted")
    reset = int(time.time()) + 7200
    used_up = too_many(
        3600,
        anthropic_ratelimit_unified_status="rejected",
        anthropic_ratelimit_unified_reset=str(reset),
        anthropic_ratelimit_unified_representative_claim="five_hour",
    )
    model.rules.append(Rule((), [["never"]], faults=[used_up] * 9))
    report = agent.ask("hello")
    assert (report.trouble, report.reset_at) == ("quota", reset)
    assert "limit" in report.detail
    assert model.requests[0].headers["authorization"] == "Bearer sk-ant-oat01-planted"


@pytest.mark.parametrize(
    ("fault", "trouble"),
    [
        (overflow(), "overflow"),
        (Fault(500), "crash"),
        (Fault(529, "overloaded_error", "Overloaded"), "rate_limit"),
        (Fault(403, "permission_error", "no"), "auth"),
        (Fault(400, "invalid_request_error", "Your credit balance is too low"), "auth"),
        (DROPPED, "crash"),
    ],
    ids=["overflow", "500", "529", "403", "credit", "dropped"],
)
def test_each_failure_of_the_provider_has_its_class(
    agent: Agent, model: ModelServer, fault: Fault, trouble: str
) -> None:
    model.rules.append(Rule((), [["never"]], faults=[fault] * 9))
    report = agent.ask("hello")
    assert (report.trouble, report.detail != "") == (trouble, True)


def test_one_dropped_stream_does_not_fail_the_attempt(agent: Agent, model: ModelServer) -> None:
    model.rules.append(Rule((), [["Here it is."]], faults=[DROPPED]))
    report = agent.ask("hello")
    assert (report.text, report.trouble) == ("Here it is.", "")
    assert report.tokens_in > 0


@pytest.mark.parametrize("fault", [HANGS, STALLS], ids=["silent", "half-way"])
def test_an_agent_whose_model_hangs_is_ended_with_a_complete_report(
    agent: Agent, model: ModelServer, fault: Fault
) -> None:
    model.rules.append(Rule(("hello",), [["I check.", bash("true")]]))
    model.rules.insert(0, Rule(("hello",), [["never"]], [fault], anywhere=('"command": "true"',)))
    request = agent.request("hello")
    process = agent.start(request)
    wait_for(lambda: len(model.requests) == 2, "the model is asked again")
    process.terminate()
    process.wait(_PATIENCE_S)
    report = agent.runner.read_report(request.run_dir)
    assert (report.trouble, report.text, report.tools) == ("crash", "I check.", {"Bash": 1})
    assert report.session


def test_the_cli_uses_the_requested_model_and_budget(agent: Agent, model: ModelServer) -> None:
    model.rules.append(Rule((), [[bash("true")]]))
    report = agent.ask("hello", model="claude-sonnet-4-5", budget_usd=0.001)
    assert {asked.model for asked in model.requests} == {"claude-sonnet-4-5"}
    assert (report.trouble, report.model) == ("budget", "claude-sonnet-4-5")
    assert (report.cost_usd or 0) >= 0.001


def test_instructions_of_the_project_are_read_and_its_hooks_do_not_run(
    agent: Agent, model: ModelServer
) -> None:
    workspace, ran = agent.workspace, agent.root / "RAN"
    line = {"type": "command", "command": f"touch {ran}"}
    events = ("SessionStart", "UserPromptSubmit", "PreToolUse", "Stop", "SessionEnd")
    settings = {
        "hooks": {event: [{"matcher": "", "hooks": [line]}] for event in events},
        "apiKeyHelper": f"touch {ran}",
        "env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:1"},
        "enableAllProjectMcpServers": True,
    }
    (workspace / ".claude").mkdir()
    for name in ("settings.json", "settings.local.json"):
        (workspace / ".claude" / name).write_text(json.dumps(settings))
    server = {"command": "touch", "args": [str(ran)]}
    (workspace / ".mcp.json").write_text(json.dumps({"mcpServers": {"planted": server}}))
    (workspace / "CLAUDE.md").write_text("PROJECT-SAYS: use tabs\n@more.md\n")
    (workspace / "more.md").write_text("PROJECT-SAYS-MORE\n")
    (workspace / "AGENTS.md").write_text("AGENTS-READ-THIS\n")
    subprocess.run(("git", "init", "-q", str(workspace)), check=True)
    model.rules.append(Rule(("hello",), [[bash("true")], ["Done."]]))
    report = agent.ask("hello", instructions="CALORON-SAYS: commit nothing")
    assert (report.text, report.trouble) == ("Done.", "")
    prompt_sent = model.requests[0].text
    for words in ("PROJECT-SAYS:", "PROJECT-SAYS-MORE", "AGENTS-READ-THIS", "CALORON-SAYS:"):
        assert words in prompt_sent
    assert not ran.exists()


def test_the_key_is_on_no_command_line_and_in_no_file(agent: Agent, model: ModelServer) -> None:
    command = agent.runner.command(agent.request("hello"))
    assert _KEY not in " ".join((*command.argv, *command.env.values()))
    assert command.secrets == {"ANTHROPIC_API_KEY": _KEY}
    assert agent.ask("hello").text == "Done."
    assert model.requests[0].headers["x-api-key"] == _KEY
    written = [f for f in agent.root.rglob("*") if f.is_file() and _KEY.encode() in f.read_bytes()]
    assert written == []


def test_a_login_provides_only_its_access_token(
    agent: Agent, model: ModelServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    log_in(tmp_path / "user", time.time() + 3600)
    command = agent.runner.command(agent.request("hello"))
    assert command.secrets == {"CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-mine"}
    assert agent.ask("hello").text == "Done."
    assert model.requests[0].headers["authorization"] == "Bearer sk-ant-oat01-mine"
    homes = [f.read_bytes() for f in agent.root.glob("run-*/**/*") if f.is_file()]
    assert not any(b"renewal" in data for data in homes)


def log_in(home: Path, until: float) -> None:
    login = {
        "accessToken": "sk-ant-oat01-mine",
        "refreshToken": "sk-ant-ort01-renewal",
        "expiresAt": until * 1000,
    }
    (home / ".claude").mkdir(parents=True)
    (home / ".claude" / ".credentials.json").write_text(json.dumps({"claudeAiOauth": login}))


def test_without_a_key_or_a_login_no_agent_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runner = ClaudeCode()
    runner.check()
    monkeypatch.setenv("ANTHROPIC_API_KEY", "")
    with pytest.raises(PreconditionFailed, match="neither a key nor a login") as refused:
        runner.check()
    assert "ANTHROPIC_API_KEY" in refused.value.hint
    log_in(tmp_path / "user", time.time() - 1)
    with pytest.raises(PreconditionFailed, match="has expired"):
        runner.check()
    (tmp_path / "user/.claude/.credentials.json").write_text("[]")
    with pytest.raises(PreconditionFailed, match="cannot be read"):
        runner.check()


def test_a_missing_cli_is_refused_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALORON_CLAUDE", "/nowhere/claude")
    with pytest.raises(PreconditionFailed, match="/nowhere/claude is not there") as refused:
        ClaudeCode().check()
    assert "npm install -g @anthropic-ai/claude-code" in refused.value.hint
    monkeypatch.delenv("CALORON_CLAUDE")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(PreconditionFailed, match="is not installed"):
        ClaudeCode().check()


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("", "api.anthropic.com"),
        ("https://gateway.example.invalid/v1", "gateway.example.invalid:443"),
        ("http://[fd00::1]/v1", "[fd00::1]:80"),
        ("https://gateway.example.invalid:8443", "gateway.example.invalid:8443"),
        ("http://127.0.0.1:4000", "127.0.0.1:4000"),
        ("http://localhost:4000/", "127.0.0.1:4000"),
    ],
)
def test_the_host_of_the_model_follows_from_its_address(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, address: str, host: str
) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", address)
    assert agent.runner.command(agent.request("hello")).hosts == (host,)


def test_an_invalid_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("gateway", "http://host:port", "ftp://host"):
        monkeypatch.setenv("ANTHROPIC_BASE_URL", address)
        with pytest.raises(UsageError, match="ANTHROPIC_BASE_URL"):
            ClaudeCode().check()


def test_without_an_own_address_all_requests_use_the_proxy(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_BASE_URL")
    monkeypatch.setenv("CLAUDE_CODE_MAX_RETRIES", "0")
    with HttpServer(lambda _: Reply(status=502)) as proxy:
        request = agent.request("hello")
        process = agent.start(request, HTTPS_PROXY=proxy.url, HTTP_PROXY=proxy.url)
        # The CLI requests its settings repeatedly before it calls the model; a few suffice.
        wait_for(lambda: len(proxy.requests) >= 4, "the proxy is asked")
        kill(process)
    asked = {(request.method, request.path) for request in proxy.requests}
    assert asked == {("CONNECT", "api.anthropic.com:443")}
    assert agent.runner.read_report(request.run_dir).trouble == "crash"


def test_the_installation_is_readable_through_links(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "claude").symlink_to(claude())
    monkeypatch.delenv("CALORON_CLAUDE")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    command = agent.runner.command(agent.request("hello"))
    program = Path(command.argv[0])
    assert program == claude().resolve()
    assert any(program.is_relative_to(read_only) for read_only in command.read_only)
    assert {read_only.parent.name for read_only in command.read_only} == {"@anthropic-ai"}
    native = tmp_path / "share" / "versions" / "2.1.197"
    native.parent.mkdir(parents=True)
    native.write_bytes(b"\x7fELF")
    native.chmod(0o755)
    monkeypatch.setenv("CALORON_CLAUDE", str(native))
    command = agent.runner.command(agent.request("hello"))
    assert (command.argv[0], command.read_only) == (str(native), (native,))


def test_an_agent_cannot_save_other_files_as_its_conversation(tmp_path: Path) -> None:
    runner, session = ClaudeCode(), "0f8fad5b-d9cb-469f-a165-70867728950e"
    sessions, outside = tmp_path / "sessions", tmp_path / "outside"
    outside.mkdir()
    (outside / f"{session}.jsonl").write_text("the user's own\n")
    for trick in ("file", "folder", "projects", "pipe", "home"):
        home = tmp_path / trick
        folder = home / ".claude" / "projects" / "-workspace"
        if trick == "file":
            folder.mkdir(parents=True)
            (folder / f"{session}.jsonl").symlink_to(outside / f"{session}.jsonl")
        elif trick == "pipe":
            folder.mkdir(parents=True)
            os.mkfifo(folder / f"{session}.jsonl")
        elif trick == "folder":
            folder.parent.mkdir(parents=True)
            folder.symlink_to(outside)
        elif trick == "projects":
            folder.parent.parent.mkdir(parents=True)
            (outside / "-workspace").symlink_to(outside)
            folder.parent.symlink_to(outside)
        assert not runner.save_session(home, sessions, session), trick
    for name in ("", "../outside/x", f"{session}/..", "x" * 36):
        assert not runner.save_session(tmp_path, sessions, name)
    assert not sessions.exists()


def test_an_incomplete_line_of_a_conversation_is_not_saved(tmp_path: Path) -> None:
    runner, session = ClaudeCode(), "0f8fad5b-d9cb-469f-a165-70867728950e"
    folder = tmp_path / "home" / ".claude" / "projects" / "-workspace"
    folder.mkdir(parents=True)
    (folder / f"{session}.jsonl").write_text('{"type": "user"}\n{"type": "assis')
    assert runner.save_session(tmp_path / "home", tmp_path / "sessions", session)
    assert (tmp_path / "sessions" / f"{session}.jsonl").read_text() == '{"type": "user"}\n'
    (folder / f"{session}.jsonl").write_text('{"type": "assis')
    assert not runner.save_session(tmp_path / "home", tmp_path / "sessions", session)


def test_links_that_setup_left_in_a_home_are_not_followed(agent: Agent, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "CLAUDE.md").write_text("the user's own\n")
    ask = agent.request("hello", instructions="ours")
    ask.home.mkdir(parents=True)
    (ask.home / ".claude").symlink_to(outside)
    (ask.home / "instructions.md").symlink_to(outside / "CLAUDE.md")
    agent.runner.command(ask)
    assert [(f.name, f.read_text()) for f in outside.iterdir()] == [
        ("CLAUDE.md", "the user's own\n")
    ]
    (ask.home / ".claude" / "settings.json").write_text('{"hooks": {}}')
    agent.runner.command(ask)
    assert not (ask.home / ".claude" / "settings.json").exists()


def test_a_run_that_never_started_has_a_report(tmp_path: Path) -> None:
    report = ClaudeCode().read_report(tmp_path)
    assert (report.trouble, report.text, report.cost_usd) == ("crash", "", None)


def test_the_interpreter_of_a_script_is_readable(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "node_modules" / "@anthropic-ai" / "claude-code"
    package.mkdir(parents=True)
    (package / "cli.js").write_text("#!/usr/bin/env node\n")
    (package / "cli.js").chmod(0o755)
    node = tmp_path / "bin" / "node"
    node.parent.mkdir()
    node.symlink_to(sys.executable)
    monkeypatch.setenv("CALORON_CLAUDE", str(package / "cli.js"))
    monkeypatch.setenv("PATH", str(node.parent))
    command = agent.runner.command(agent.request("hello"))
    assert command.argv[:2] == (str(node.resolve()), str(package / "cli.js"))
    assert set(command.read_only) == {package, node.resolve()}
    node.unlink()
    with pytest.raises(PreconditionFailed, match="needs `node`"):
        agent.runner.command(agent.request("hello"))
