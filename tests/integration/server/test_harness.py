"""`caloron harness start` as a spawner calls it, configured only by environment variables."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from caloron.server.harness import Harness, HarnessOptions
from caloron.server.settings import harness_settings
from tests.support.claude import claude
from tests.support.git import new_repository
from tests.support.http_server import HttpServer, Reply
from tests.support.json_schema import problems
from tests.support.model_server import ModelServer, Rule, Turn, bash, write
from tests.support.sockets import free_port


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return new_repository(tmp_path / "clone")


def _harness(
    workspace: Path, *options: str, fixture: Any = None, **env: str
) -> tuple[int, dict[str, Any], str]:
    file = workspace.parent / "fixture.json"
    file.write_text(json.dumps(fixture or {"default": "ok"}), "utf-8")
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(workspace.parent),
        "CALORON_HOME": str(workspace.parent / "home"),
        "CALORON_WORKTREE": str(workspace),
        "CALORON_AGENT_ID": "ann",
        "CALORON_TASK_ID": "t-1",
        "CALORON_SPRINT_ID": "s-1",
        "CALORON_RUN_DIR": str(workspace.parent / "run"),
    }
    if not {"CALORON_FRAMEWORK_CMD", "CALORON_CLAUDE"} & env.keys():
        variables |= {"CALORON_FRAMEWORK": "stub", "CALORON_STUB_FIXTURE": str(file)}
    done = subprocess.run(
        [sys.executable, "-m", "caloron.cli", "harness", "start", "--output", "json", *options],
        env=variables | env, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    result = json.loads(done.stdout)
    assert problems(result) == []
    return done.returncode, result, done.stderr


def _log(workspace: Path, form: str) -> str:
    words = ["git", "-C", str(workspace), "-c", "safe.directory=*", "log", "-1", f"--format={form}"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    ("response", "options", "code", "reason"),
    [
        ({"report": {"tokens_in": 2}}, (), 0, ""),
        ({"exit_code": 3}, (), 3, "the agent ended with exit code 3"),
        ({"run": "echo x > b.txt; sleep 600"}, ("--timeout", "2"), 6, "it timed out"),
    ],
)
def test_the_result_is_that_of_the_agent_and_its_work_is_always_committed(
    workspace: Path, response: Any, options: tuple[str, ...], code: int, reason: str
) -> None:
    fixture = {"responses": [{"files": {"a.txt": "x\n"}, **response}]}
    exit_code, result, _ = _harness(workspace, *options, fixture=fixture)
    assert (exit_code, result["ok"], result["data"]["reason"]) == (code, not code, reason)
    assert result["data"]["status"] == ("failed" if code else "completed")
    assert result["data"]["tokens_used"] == (0 if code else 2)
    assert result.get("error", {}).get("message", "") == reason
    kept = json.loads((workspace.parent / "run" / "result.json").read_bytes())
    assert (kept["exit_code"], kept["status"]) == (code, result["data"]["status"])
    assert _log(workspace, "%s") == "[ann] Complete t-1"


def test_a_file_of_secrets_is_deleted_and_its_values_are_not_in_the_log(workspace: Path) -> None:
    secrets = workspace.parent / "secrets"
    secrets.write_text("# keys\nMY_API_KEY=s3cr3t-Value-9x8y7z\n\nexport OTHER='two words'\n")
    run = 'echo "key $MY_API_KEY"; [ "$OTHER" = "two words" ]'
    code, _, _ = _harness(
        workspace, fixture={"responses": [{"run": run}]}, CALORON_SECRETS_FILE=str(secrets)
    )
    assert code == 0
    assert not secrets.exists()
    output = (workspace.parent / "run" / "output.log").read_text("utf-8")
    assert "s3cr3t" not in output
    for file in (workspace.parent / "run").rglob("*"):
        assert not file.is_file() or b"s3cr3t" not in file.read_bytes()


def test_a_bad_file_of_secrets_is_deleted_and_never_printed(workspace: Path) -> None:
    secrets = workspace.parent / "secrets"
    secrets.write_text("GOOD=1\ns3cr3t without a name\n")
    code, result, stderr = _harness(workspace, CALORON_SECRETS_FILE=str(secrets))
    assert (code, secrets.exists()) == (2, False)
    assert "line 2" in result["error"]["message"]
    assert "s3cr3t" not in json.dumps(result) + stderr
    assert _harness(workspace, CALORON_SECRETS_FILE=str(secrets))[0] == 3


def test_a_committed_secret_is_refused(workspace: Path, tmp_path: Path) -> None:
    base = _log(workspace, "%H")
    secrets = tmp_path / "secrets"
    secrets.write_text("MY_API_KEY=s3cr3t-Value-9x8y7z\n")
    mirror = tmp_path / "mirror.git"
    subprocess.run(["git", "clone", "-q", "--bare", str(workspace), str(mirror)], check=True)
    code, result, _ = _harness(
        workspace, fixture={"responses": [{"run": 'printf %s "$MY_API_KEY" > key.txt'}]},
        CALORON_SECRETS_FILE=str(secrets), CALORON_BASE_COMMIT=base, CALORON_MIRROR=str(mirror),
        CALORON_REPOSITORY=str(mirror), CALORON_BRANCH="agent/ann/s-1",
    )  # fmt: skip
    assert code == 1
    assert "hold the value of MY_API_KEY" in result["error"]["message"]


def test_without_a_sandbox_no_agent_runs_unless_the_user_permits_it(
    workspace: Path, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    names = "git sh env find sed grep head tail tr mktemp cat chmod sort du cut"
    for name in names.split():
        (tools / name).symlink_to(f"/usr/bin/{name}")
    fixture = {"responses": [{"files": {"a.txt": "x\n"}}]}
    code, result, _ = _harness(workspace, fixture=fixture, PATH=str(tools))
    assert (code, result["error"]["code"]) == (8, "PRECONDITION_FAILED")
    assert "bwrap" in result["error"]["message"]
    assert not (workspace / "a.txt").exists()
    code, _, _ = _harness(workspace, "--unsandboxed", fixture=fixture, PATH=str(tools))
    assert code == 0
    assert _log(workspace, "%s") == "[ann] Complete t-1"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")
@pytest.mark.parametrize(("network", "greeting"), [("public", "403"), ("full", "hello")])
def test_an_agent_with_the_public_network_does_not_reach_this_machine(
    workspace: Path, network: str, greeting: str
) -> None:
    """The script uses the proxy of its environment, as every HTTP client does."""
    with HttpServer(lambda _: Reply("hello\n")) as server:
        script = (
            "python3 -c 'import os, urllib.error, urllib.request as r\n"
            'os.environ.pop("no_proxy", None); os.environ.pop("NO_PROXY", None)\n'
            f'try: print("answer:", r.urlopen("{server.url}/").read())\n'
            'except urllib.error.HTTPError as error: print("answer:", error.code)\''
        )
        fixture = {"responses": [{"run": script}]}
        code, result, stderr = _harness(workspace, "--network", network, fixture=fixture)
    assert code == 0, (result, stderr)
    output = (workspace.parent / "run" / "output.log").read_text("utf-8")
    (line,) = [line for line in output.splitlines() if line.startswith("answer:")]
    assert greeting in line


def test_a_linked_worktree_is_refused(workspace: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    subprocess.run(["git", "-C", str(workspace), "worktree", "add", "-q", str(linked)], check=True)
    code, result, _ = _harness(workspace, CALORON_WORKTREE=str(linked))
    assert code == 8
    assert "linked worktree" in result["error"]["hint"]


def test_any_program_can_be_an_agent_and_gets_its_prompt_after_p(workspace: Path) -> None:
    code, _, _ = _harness(
        workspace, CALORON_FRAMEWORK_CMD="printf", CALORON_FRAMEWORK_ARGS="'<%s>\\n'",
        CALORON_TASK_DESCRIPTION="Write a README", CALORON_SYSTEM_PROMPT="You are brief.",
    )  # fmt: skip
    assert code == 0
    output = (workspace.parent / "run" / "output.log").read_text("utf-8")
    assert output.startswith("<-p>\n<You are brief.\n\nWrite a README\n\n")


def test_the_dangerous_flag_needs_a_permission_of_the_user(workspace: Path) -> None:
    env = {
        "CALORON_FRAMEWORK_CMD": "echo",
        "CALORON_FRAMEWORK_ARGS": "--dangerously-skip-permissions",
    }
    code, result, _ = _harness(workspace, **env)
    assert code == 2
    assert "CALORON_ALLOW_DANGEROUS_CLAUDE" in result["error"]["hint"]
    assert _harness(workspace, **env, CALORON_ALLOW_DANGEROUS_CLAUDE="1")[0] == 0


@pytest.mark.parametrize("allowed", [False, True])
def test_claude_code_needs_permission_for_more_than_edits(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    claude = workspace.parent / "claude"
    shutil.copy("/bin/true", claude)
    monkeypatch.setenv("CALORON_CLAUDE", str(claude))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x")
    env = {
        "CALORON_WORKTREE": str(workspace),
        "CALORON_ALLOW_DANGEROUS_CLAUDE": "1" if allowed else "",
    }
    settings = harness_settings(env, workspace.parent / "runs")
    home = workspace.parent / "agent-home"
    command = Harness(settings, HarnessOptions(unsandboxed=True))._command(home)
    assert ("--dangerously-skip-permissions" in command.argv) is allowed
    assert ("acceptEdits" in command.argv) is not allowed


def test_the_harness_goes_on_if_the_shell_does_not_answer(workspace: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    code, result, stderr = _harness(
        workspace, "--every", "0.1", CALORON_SHELL_URL=url, CALORON_SHELL_TOKEN="t"
    )
    assert (code, result["data"]["told"]) == (0, False)
    assert "heartbeat 1 to" in stderr
    code, result, _ = _harness(workspace, CALORON_SHELL_URL=url)
    assert code == 8
    assert "CALORON_SHELL_TOKEN" in result["error"]["message"]


@pytest.mark.parametrize("name", ["CALORON_AGENT_ID", "CALORON_TASK_ID", "CALORON_SPRINT_ID"])
def test_an_invalid_id_is_refused(workspace: Path, name: str) -> None:
    code, result, _ = _harness(workspace, **{name: "../x"})
    assert code == 2
    assert name in result["error"]["message"]


def test_the_real_claude_code_edits_files_and_is_refused_the_rest(workspace: Path) -> None:
    turns: list[Turn] = [
        [write("/workspace/a.txt", "one\n")],
        [bash('python3 -c \'open("by-bash.txt", "w")\'')],
        ["Written."],
    ]
    with ModelServer(Rule(("Write a file",), turns)) as model:
        env = {
            "CALORON_CLAUDE": str(claude()),
            "ANTHROPIC_API_KEY": "sk-ant-planted-key-4711",
            "ANTHROPIC_BASE_URL": model.url,
            "CALORON_TASK_DESCRIPTION": "Write a file",
        }
        code, result, _ = _harness(workspace, **env)
        assert (code, result["data"]["status"]) == (0, "completed")
        assert result["data"]["tokens_used"] > 0
        assert (workspace / "a.txt").read_text("utf-8") == "one\n"
        assert not (workspace / "by-bash.txt").exists()
        assert _log(workspace, "%s") == "[ann] Complete t-1"
        assert _harness(workspace, **env, CALORON_ALLOW_DANGEROUS_CLAUDE="1")[0] == 0
    assert (workspace / "by-bash.txt").exists()
    assert b"planted-key" not in (workspace.parent / "run" / "output.log").read_bytes()
