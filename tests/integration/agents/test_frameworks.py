"""The frameworks `stub` and `command`: their files in the sandbox, and their reports."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from caloron.agents.clis.registry import FRAMEWORKS, NAMES, agent_cli, info
from caloron.agents.workspace.workspaces import remove_workspace
from caloron.errors import PreconditionFailed, UsageError
from caloron.ports import AgentCli, AgentCommand, AgentReport, AgentRequest
from tests.support.agent_requests import agent_request


class Run:
    """One run directory, with the home of its agent in it."""

    def __init__(self, root: Path) -> None:
        self.run_dir = root / "run"
        self.home = self.run_dir / "home"
        self.home.mkdir(parents=True)
        self.workspace = root / "workspace"
        self.workspace.mkdir()

    def request(self, prompt: str = "hello", **fields: Any) -> AgentRequest:
        fields = {"workspace": self.workspace} | fields
        return agent_request(run_dir=self.run_dir, prompt=prompt, **fields)

    def play(self, runner: AgentCli) -> AgentReport:
        command = runner.command(self.request())
        with (self.run_dir / "output.log").open("wb") as output:
            subprocess.run(
                command.argv,
                input=command.stdin.encode(),
                stdout=output,
                cwd=self.workspace,
                env={"PATH": os.environ["PATH"], **command.env},
                check=True,
            )
        return runner.read_report(self.run_dir)

    def report_of(self, report: object) -> AgentReport:
        data = report if isinstance(report, bytes) else json.dumps(report).encode()
        (self.home / "report.json").write_bytes(data)
        return agent_cli("command", command=("true",)).read_report(self.run_dir)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def stub(run: Run, **response: Any) -> AgentCli:
    fixture = run.run_dir / "fixture.json"
    fixture.write_text(json.dumps({"responses": [response]}))
    return agent_cli("stub", stub_fixture=str(fixture))


REPORTED: dict[str, Any] = {
    "cost_usd": 0.5,
    "tokens_in": 10,
    "tokens_out": 3,
    "session": "s-1",
    "model": "m",
    "stop_reason": "end",
    "trouble": "quota",
    "detail": "used up",
    "reset_at": 1794808229.5,
}


def test_the_scripted_agent_reports_the_values_of_its_fixture(run: Run) -> None:
    runner = stub(run, output="Ümläut", report=REPORTED)
    assert runner.info.reports_cost
    assert run.play(runner) == AgentReport(text="Ümläut\n", **REPORTED)


def test_without_a_cost_in_its_fixture_the_scripted_agent_reports_no_cost(run: Run) -> None:
    runner = stub(run, output="hi", report={"tokens_in": 1})
    assert not runner.info.reports_cost
    assert run.play(runner).cost_usd is None
    assert not stub(run, output="hi").info.reports_cost


def test_any_program_may_write_a_report(run: Run) -> None:
    script = 'echo hi; echo \'{"cost_usd": 2}\' > "$CALORON_REPORT"'
    report = run.play(agent_cli("command", command=("sh", "-c", script)))
    assert (report.text, report.cost_usd, report.trouble) == ("hi\n", 2, "")


@pytest.mark.parametrize(
    ("report", "detail"),
    [
        (b"{", "its report.json is not JSON"),
        (b"\xff", "its report.json is not JSON"),
        (b"[" * 60_000, "its report.json is not JSON"),
        ([], "its report.json is not an object"),
        (b" " * 70_000, "more than 65536 bytes"),
        ({"cost_usd": "1"}, "unusable fields: cost_usd"),
        ({"cost_usd": -1}, "unusable fields: cost_usd"),
        ({"cost_usd": True}, "unusable fields: cost_usd"),
        (b'{"cost_usd": NaN}', "unusable fields: cost_usd"),
        (b'{"reset_at": 1e400}', "unusable fields: reset_at"),
        ({"tokens_in": 1.5}, "unusable fields: tokens_in"),
        ({"trouble": "other"}, "unusable fields: trouble"),
        ({"trouble": []}, "unusable fields: trouble"),
        ({"session": 1}, "unusable fields: session"),
        ({"text": "x", "tools": {}}, "unusable fields: text, tools"),
    ],
)
def test_an_unusable_report_is_ignored_with_the_reason(
    run: Run, report: object, detail: str
) -> None:
    parsed = run.report_of(report)
    assert detail in parsed.detail
    assert parsed == AgentReport(detail=parsed.detail)


def test_valid_fields_of_a_report_count_beside_invalid_fields(run: Run) -> None:
    parsed = run.report_of(
        {"cost_usd": 1, "reset_at": None, "detail": "two\nlines\x1b[2J", "turns": 3}
    )
    assert (parsed.cost_usd, parsed.reset_at) == (1, None)
    assert parsed.detail == "two lines [2J (its report.json has unusable fields: turns)"


def test_a_report_that_is_a_link_or_a_pipe_is_not_read(run: Run, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text('{"cost_usd": 1}')
    report_file = run.home / "report.json"
    runner = agent_cli("command", command=("true",))
    report_file.symlink_to(outside)
    assert runner.read_report(run.run_dir).cost_usd is None
    report_file.unlink()
    os.mkfifo(report_file)
    report = runner.read_report(run.run_dir)
    assert (report.cost_usd, "not a regular file" in report.detail) == (None, True)
    report_file.unlink()
    report_file.mkdir()
    assert runner.read_report(run.run_dir).cost_usd is None


def test_a_long_output_keeps_the_plan_at_its_beginning_and_the_verdict_at_its_end(
    run: Run,
) -> None:
    log = run.run_dir / "output.log"
    runner = agent_cli("command", command=("true",))
    assert runner.read_report(run.run_dir).text == ""
    log.write_bytes(b"PLAN" + b"x" * 1_048_564 + b"VERDICT\n")
    assert len(runner.read_report(run.run_dir).text) == 1 << 20
    log.write_bytes(b"PLAN" + b"x" * 5_000_000 + b"VERDICT\n")
    text = runner.read_report(run.run_dir).text
    assert text.startswith("PLANxx")
    assert text.endswith("xxVERDICT\n")
    assert "bytes omitted" in text
    assert len(text) < (1 << 20) + 100


def test_paths_are_named_as_the_agent_sees_them(run: Run) -> None:
    inside = {"workspace": Path("/workspace"), "sandbox_home": Path("/home/agent")}
    ask = run.request("the prompt", **inside)
    command = agent_cli("command", command=("sh", "{workspace}", "{prompt_file}")).command(ask)
    assert command.argv == (shutil.which("sh"), "/workspace", "/home/agent/prompt.txt")
    assert (run.home / "prompt.txt").read_text() == "the prompt"
    assert command.env == {"CALORON_REPORT": "/home/agent/report.json"}
    fixture = run.run_dir / "fixture.json"
    assert stub(run, output="").command(ask).read_only == (fixture,)


def needs(run: Run, program: str) -> AgentCommand:
    return agent_cli("command", command=(program, "-x")).command(run.request())


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_deep_folders_at_the_path_of_the_prompt_are_replaced_by_the_prompt(run: Run) -> None:
    deep = "import os\nfor _ in range(1200):\n    os.mkdir('d')\n    os.chdir('d')\n"
    (run.home / "prompt.txt").mkdir()
    subprocess.run([sys.executable, "-c", deep], cwd=run.home / "prompt.txt", check=True)
    try:
        agent_cli("command", command=("true", "{prompt_file}")).command(run.request("do it"))
        assert (run.home / "prompt.txt").read_text() == "do it"
    finally:
        remove_workspace(run.home)  # pytest could not


def test_a_program_of_the_system_is_named_by_its_full_path_and_needs_nothing_more(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = needs(run, "sh")
    assert (command.argv, command.read_only) == ((shutil.which("sh"), "-x"), ())
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "my-shell").symlink_to("/usr/bin/env")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert needs(run, "my-shell").argv == ("/usr/bin/env", "-x")


def test_a_program_elsewhere_is_readable_with_its_real_folder(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = executable(tmp_path / "share" / "agent" / "agent")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "my-agent").symlink_to(real)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for name in ("my-agent", str(tmp_path / "bin" / "my-agent")):
        command = needs(run, name)
        assert (command.argv, command.read_only) == ((str(real), "-x"), (real.parent,))


def test_a_program_right_in_a_home_does_not_make_the_home_readable(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = executable(tmp_path / "user" / "agent")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    assert needs(run, str(program)).read_only == (program,)


def test_a_program_of_a_virtual_environment_is_readable_with_the_whole_environment(
    run: Run, tmp_path: Path
) -> None:
    environment = tmp_path / "venv"
    program = executable(environment / "bin" / "agent")
    (environment / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (environment / "bin" / "python").symlink_to("/usr/bin/env")
    command = needs(run, str(program))
    assert (command.argv[0], command.read_only) == (str(program), (environment,))
    base = executable(tmp_path / "python-3.12" / "bin" / "python3.12")
    (environment / "bin" / "python").unlink()
    (environment / "bin" / "python").symlink_to(base)
    assert needs(run, str(program)).read_only == (environment, tmp_path / "python-3.12")


def test_a_missing_program_is_refused_before_the_start() -> None:
    for name in ("no-such-agent", "/nowhere/agent"):
        with pytest.raises(PreconditionFailed, match=name) as refused:
            agent_cli("command", command=(name,)).check()
        assert "caloron config set command" in refused.value.hint
    agent_cli("command", command=("sh",)).check()


@pytest.mark.parametrize(
    "command",
    ["./agent.sh", "tools/agent", "../agent", "sh agent.sh", "/bin/bash -e agent.sh",
     "python3 agent.py", "/usr/bin/python3.11 -u -m agent"],
)  # fmt: skip
def test_a_program_of_the_workspace_is_refused_since_the_author_could_replace_it(
    command: str,
) -> None:
    with pytest.raises(UsageError, match="replace its reviewer"):
        agent_cli("command", command=tuple(command.split())).check()


@pytest.mark.parametrize(
    "command",
    ["sh /opt/agent.sh", "sh -c agent", "sh", "python3 -P -m agent", "python3 -I -m agent",
     "cat {prompt_file}", "sh {prompt_file}"],
)  # fmt: skip
def test_a_program_outside_the_workspace_is_accepted(command: str) -> None:
    agent_cli("command", command=tuple(command.split())).check()


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(FRAMEWORKS)))
def test_a_cli_that_only_answers_is_refused_as_a_framework(name: str) -> None:
    with pytest.raises(UsageError, match=f"{info(name).title} cannot work on tasks yet") as refused:
        agent_cli(name)
    assert info(name).provider in str(refused.value)
    assert "claude-code" in refused.value.hint


def test_every_framework_is_created_by_its_name(run: Run) -> None:
    stub(run, output="")
    fixture = str(run.run_dir / "fixture.json")
    made = [agent_cli(name, stub_fixture=fixture, command=("sh",)) for name in FRAMEWORKS]
    assert tuple(runner.info.name for runner in made) == FRAMEWORKS
    assert not any(runner.save_session(run.home, run.run_dir, "s") for runner in made)
