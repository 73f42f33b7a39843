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


@pytest.mark.parametrize(
    "command",
    ["./agent.sh", "tools/agent", "../agent", "sh agent.sh", "/bin/bash -e agent.sh",
     "python3 agent.py", "/usr/bin/python3.11 -u -m agent"],
)  # fmt: skip
def test_a_program_of_the_workspace_is_refused_since_its_author_could_replace_it(
    command: str,
) -> None:
    with pytest.raises(UsageError, match="replace its reviewer"):
        agent_cli("command", command=tuple(command.split())).check()


def test_a_program_outside_the_workspace_is_accepted() -> None:
    for line in ("sh /opt/agent.sh", "sh -c agent", "sh", "python3 -P -m agent",
                 "python3 -I -m agent", "cat {prompt_file}", "sh {prompt_file}"):  # fmt: skip
        agent_cli("command", command=tuple(line.split())).check()


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


def play(
    run: Run, fixture: object, prompt: str = "", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Run the stub with a fixture, a prompt and CALORON_* variables in lower case."""
    file = run.run_dir / "fixture.json"
    file.write_text(json.dumps(fixture))
    command = agent_cli("stub", stub_fixture=str(file)).command(run.request(prompt))
    own = {f"CALORON_{name.upper()}": value for name, value in environment.items()}
    return subprocess.run(
        command.argv,
        input=command.stdin.encode(),
        cwd=run.workspace,
        env={"PATH": os.environ["PATH"], **own},
        capture_output=True,
        check=False,
    )


SEED: dict[str, Any] = {
    "responses": [
        {"match": "apples", "output": "about apples"},
        {"match": "app", "output": "something with app"},
    ],
    "default": "nothing known",
}


@pytest.mark.parametrize(
    ("prompt", "output"),
    [
        ("describe apples", "about apples\n"),
        ("an app", "something with app\n"),
        ("pears", "nothing known\n"),
    ],
)
def test_a_stateless_fixture_of_the_seeds_works_unchanged(
    run: Run, prompt: str, output: str
) -> None:
    done = play(run, SEED, prompt)
    assert (done.stdout.decode(), done.returncode) == (output, 0)


def test_without_a_match_and_a_default_the_stub_explains_itself(run: Run) -> None:
    done = play(run, {"responses": [{"match": "x", "output": "y"}]}, role="review")
    assert b"has no response for this prompt (role review" in done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("when", "environment", "matches"),
    [
        ({}, {}, True),
        ({"role": "review"}, {"role": "review"}, True),
        ({"role": "review"}, {"role": "fix"}, False),
        ({"role": "review"}, {}, False),
        ({"task": "a", "round": 2}, {"task_id": "a", "round": "2"}, True),
        ({"task": "a", "round": 2}, {"task_id": "a", "round": "1"}, False),
        ({"attempt": "1"}, {"attempt": "1"}, True),
        ({"attempt": [1, 3]}, {"attempt": "3"}, True),
        ({"attempt": [1, 3]}, {"attempt": "2"}, False),
    ],
)
def test_every_condition_of_a_response_must_match(
    run: Run, when: dict[str, object], environment: dict[str, str], matches: bool
) -> None:
    fixture = {"responses": [{"when": when, "match": "go", "output": "yes"}], "default": "no"}
    lines = play(run, fixture, "go on", **environment).stdout.splitlines()[0]
    assert lines == (b"yes" if matches else b"no")
    assert play(run, fixture, "stay", **environment).stdout.splitlines()[0] == b"no"


@pytest.mark.parametrize(
    ("role", "output", "first", "last"),
    [
        ("implement", "I wrote it.", b"I wrote it.", b"---"),
        ("fix", None, b"Done.", b"---"),
        ("resolve", "Merged.", b"Merged.", b"---"),
        ("check", "It holds.\nAPPROVED", b"It holds.", b"APPROVED"),
        ("review", "Good.\nAPPROVED", b"Good.", b"APPROVED"),
        ("po", '[{"id": "a"}]', b"```json", b"```"),
        ("retro", '{"themes": []}', b"```json", b"```"),
    ],
)
def test_an_answer_ends_in_the_form_that_its_prompt_requests(
    run: Run, role: str, output: str | None, first: bytes, last: bytes
) -> None:
    response = {} if output is None else {"output": output}
    lines = play(run, {"responses": [response]}, role=role).stdout.splitlines()
    assert (lines[0], lines[-1]) == (first, last)
    has_feedback = b"caloron_feedback:" in lines
    assert has_feedback is (role in ("implement", "fix", "resolve", "check"))


def test_without_an_ending_the_output_is_printed_unchanged(run: Run) -> None:
    response = {"output": "Only this.", "ending": False}
    assert play(run, {"responses": [response]}, role="implement").stdout == b"Only this.\n"
    failed = {"output": "No luck.", "exit_code": 3}
    assert play(run, {"responses": [failed]}, role="implement").stdout == b"No luck.\n"


def test_files_are_written_and_deleted_before_the_shell_line_and_the_output(
    run: Run,
) -> None:
    (run.workspace / "old").touch()
    (run.workspace / "folder").mkdir()
    response = {
        "files": {
            "a/b.txt": "grün\n",
            "old": None,
            "folder": None,
            "never": None,
            "image": {"base64": "AAEC/w=="},
        },
        "run": "cat a/b.txt; ls; echo problem >&2; cat",
        "output": "done",
        "sleep_s": 0.01,
        "exit_code": 3,
    }
    done = play(run, {"responses": [response]})
    assert done.stdout.decode() == "grün\na\nimage\ndone\n"
    assert done.stderr == b"problem\n"
    assert done.returncode == 3
    assert (run.workspace / "image").read_bytes() == b"\x00\x01\x02\xff"


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ({"run": "exit 4"}, 4),
        ({"run": "kill -9 $$"}, 137),
        ({"run": "exit 4", "exit_code": 0}, 0),
        ({}, 0),
    ],
)
def test_the_exit_code_is_that_of_the_shell_line_unless_the_fixture_sets_one(
    run: Run, response: dict[str, Any], code: int
) -> None:
    done = play(run, {"responses": [response]})
    assert (done.returncode, done.stdout) == (code, b"")


@pytest.mark.parametrize(
    ("fixture", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "Expected `object`"),
        ('{"response": []}', "unknown field `response`"),
        ('{"default": 1}', r"`str`.*default"),
        ('{"responses": {}}', r"`array`.*responses"),
        ('{"responses": ["x"]}', r"`object`.*responses\[0\]"),
        ('{"responses": [{"matches": "x"}]}', r"`matches`.*responses\[0\]"),
        ('{"responses": [{}, {"match": 1}]}', r"`str`.*responses\[1\]\.match"),
        ('{"responses": [{"output": null}]}', r"`str`.*output"),
        ('{"responses": [{"sleep_s": -1}]}', r">= 0.*sleep_s"),
        ('{"responses": [{"exit_code": 256}]}', r"<= 255.*exit_code"),
        ('{"responses": [{"exit_code": true}]}', r"`int`.*exit_code"),
        ('{"responses": [{"when": {"roles": "x"}}]}', r"`roles`.*when"),
        ('{"responses": [{"when": {"round": [1.5]}}]}', r"`int | str`.*when\.round"),
        ('{"responses": [{"files": {"/etc/x": ""}}]}', r"'/etc/x', which is no path inside"),
        ('{"responses": [{"files": {"a/../../x": ""}}]}', r"no path inside"),
        ('{"responses": [{"files": {"": ""}}]}', r"no path inside"),
        ('{"responses": [{"files": {"a": 1}}]}', r"`str | object | null`.*files"),
        ('{"responses": [{"files": {"a": {"base64": "%"}}}]}', r"base64"),
    ],
)
def test_a_malformed_fixture_is_refused_with_its_file_its_field_and_what_was_expected(
    tmp_path: Path, fixture: str, message: str
) -> None:
    file = tmp_path / "fixture.json"
    file.write_text(fixture)
    with pytest.raises(UsageError, match=message) as refused:
        agent_cli("stub", stub_fixture=str(file), command=())
    assert str(file) in str(refused.value)


def test_a_missing_fixture_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.json"
    with pytest.raises(UsageError, match=f"{missing}: cannot be read: No such file"):
        agent_cli("stub", stub_fixture=str(missing), command=())
    with pytest.raises(UsageError, match="has no fixture") as refused:
        agent_cli("stub", stub_fixture="", command=())
    assert "CALORON_STUB_FIXTURE" in refused.value.hint


def test_an_unknown_framework_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="unknown framework `gpt`") as refused:
        agent_cli("gpt", stub_fixture="", command=())
    assert refused.value.hint == "known frameworks: stub, command, claude-code"


def test_a_command_gets_its_prompt_at_the_position_in_the_template(run: Run) -> None:
    prompt = "do {workspace} and {prompt_file}\n"
    ask = run.request(prompt)
    inline = agent_cli("command", command=("agent", "--in={workspace}", "-p", "{prompt}")).command(
        ask
    )
    assert inline.argv == ("agent", f"--in={run.workspace}", "-p", prompt)
    assert inline.stdin == ""
    by_file = agent_cli("command", command=("agent", "@{prompt_file}")).command(ask)
    file = Path(by_file.argv[1].removeprefix("@"))
    assert file.read_text() == prompt
    assert file.is_relative_to(ask.run_dir)
    assert by_file.stdin == ""
    piped = agent_cli("command", command=("agent", "{other}")).command(ask)
    assert (piped.argv, piped.stdin) == (("agent", "{other}"), prompt)


def test_a_command_that_cannot_be_run_is_refused(run: Run) -> None:
    for template in ((), ("",)):
        with pytest.raises(UsageError, match="no command to run"):
            agent_cli("command", stub_fixture="", command=template)
    long = run.request("x" * 200_000)
    with pytest.raises(UsageError, match="too long for a command line") as refused:
        agent_cli("command", command=("agent", "{prompt}")).command(long)
    assert "{prompt_file}" in refused.value.hint
