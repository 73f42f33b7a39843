"""The scripted agent and the command runner, started as the engine starts them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from caloron.agents.clis.registry import agent_cli
from caloron.errors import UsageError
from caloron.ports import AgentRequest
from tests.support.agent_requests import agent_request


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


def request(workspace: Path, prompt: str = "") -> AgentRequest:
    return agent_request(workspace, workspace.parent / "run", prompt)


def play(
    fixture: object, workspace: Path, prompt: str = "", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Run the stub with a fixture, a prompt and CALORON_* variables in lower case."""
    file = workspace.parent / "fixture.json"
    file.write_text(json.dumps(fixture))
    command = agent_cli("stub", stub_fixture=str(file)).command(request(workspace, prompt))
    own = {f"CALORON_{name.upper()}": value for name, value in environment.items()}
    return subprocess.run(
        command.argv,
        input=command.stdin.encode(),
        cwd=workspace,
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
    workspace: Path, prompt: str, output: str
) -> None:
    done = play(SEED, workspace, prompt)
    assert (done.stdout.decode(), done.returncode) == (output, 0)


def test_without_a_match_and_a_default_the_stub_explains_itself(workspace: Path) -> None:
    done = play({"responses": [{"match": "x", "output": "y"}]}, workspace, role="review")
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
    workspace: Path, when: dict[str, object], environment: dict[str, str], matches: bool
) -> None:
    fixture = {"responses": [{"when": when, "match": "go", "output": "yes"}], "default": "no"}
    lines = play(fixture, workspace, "go on", **environment).stdout.splitlines()[0]
    assert lines == (b"yes" if matches else b"no")
    assert play(fixture, workspace, "stay", **environment).stdout.splitlines()[0] == b"no"


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
    workspace: Path, role: str, output: str | None, first: bytes, last: bytes
) -> None:
    response = {} if output is None else {"output": output}
    lines = play({"responses": [response]}, workspace, role=role).stdout.splitlines()
    assert (lines[0], lines[-1]) == (first, last)
    has_feedback = b"caloron_feedback:" in lines
    assert has_feedback is (role in ("implement", "fix", "resolve", "check"))


def test_without_an_ending_the_output_is_printed_unchanged(workspace: Path) -> None:
    response = {"output": "Only this.", "ending": False}
    assert play({"responses": [response]}, workspace, role="implement").stdout == b"Only this.\n"
    failed = {"output": "No luck.", "exit_code": 3}
    assert play({"responses": [failed]}, workspace, role="implement").stdout == b"No luck.\n"


def test_files_are_written_and_deleted_before_the_shell_line_and_the_output(
    workspace: Path,
) -> None:
    (workspace / "old").touch()
    (workspace / "folder").mkdir()
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
    done = play({"responses": [response]}, workspace)
    assert done.stdout.decode() == "grün\na\nimage\ndone\n"
    assert done.stderr == b"problem\n"
    assert done.returncode == 3
    assert (workspace / "image").read_bytes() == b"\x00\x01\x02\xff"


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
    workspace: Path, response: dict[str, Any], code: int
) -> None:
    done = play({"responses": [response]}, workspace)
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


def test_a_command_gets_its_prompt_at_the_position_in_the_template(workspace: Path) -> None:
    prompt = "do {workspace} and {prompt_file}\n"
    ask = request(workspace, prompt)
    inline = agent_cli("command", command=("agent", "--in={workspace}", "-p", "{prompt}")).command(
        ask
    )
    assert inline.argv == ("agent", f"--in={workspace}", "-p", prompt)
    assert inline.stdin == ""
    by_file = agent_cli("command", command=("agent", "@{prompt_file}")).command(ask)
    file = Path(by_file.argv[1].removeprefix("@"))
    assert file.read_text() == prompt
    assert file.is_relative_to(ask.run_dir)
    assert by_file.stdin == ""
    piped = agent_cli("command", command=("agent", "{other}")).command(ask)
    assert (piped.argv, piped.stdin) == (("agent", "{other}"), prompt)


def test_a_command_that_cannot_be_run_is_refused(workspace: Path) -> None:
    for template in ((), ("",)):
        with pytest.raises(UsageError, match="no command to run"):
            agent_cli("command", stub_fixture="", command=template)
    long = request(workspace, "x" * 200_000)
    with pytest.raises(UsageError, match="too long for a command line") as refused:
        agent_cli("command", command=("agent", "{prompt}")).command(long)
    assert "{prompt_file}" in refused.value.hint
