"""`caloron harness start` as a spawner calls it: by its environment alone."""

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
from tests.support.shell import PUBLISHED, free_port


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return new_repository(tmp_path / "clone")


def _harness(
    place: Path, *options: str, fixture: Any = None, **env: str
) -> tuple[int, dict[str, Any], str]:
    file = place.parent / "fixture.json"
    file.write_text(json.dumps(fixture or {"default": "ok"}), "utf-8")
    told = {
        "PATH": os.environ["PATH"],
        "HOME": str(place.parent),
        "CALORON_HOME": str(place.parent / "home"),
        "CALORON_WORKTREE": str(place),
        "CALORON_AGENT_ID": "ann",
        "CALORON_TASK_ID": "t-1",
        "CALORON_SPRINT_ID": "s-1",
        "CALORON_RUN_DIR": str(place.parent / "run"),
    }
    if not {"CALORON_FRAMEWORK_CMD", "CALORON_CLAUDE"} & env.keys():
        told |= {"CALORON_FRAMEWORK": "stub", "CALORON_STUB_FIXTURE": str(file)}
    done = subprocess.run(
        [sys.executable, "-m", "caloron.cli", "harness", "start", "--output", "json", *options],
        env=told | env, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert problems(told, PUBLISHED, PUBLISHED) == []
    return done.returncode, told, done.stderr


def _log(place: Path, form: str) -> str:
    words = ["git", "-C", str(place), "-c", "safe.directory=*", "log", "-1", f"--format={form}"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    ("response", "options", "code", "reason"),
    [
        ({"report": {"tokens_in": 2}}, (), 0, ""),
        ({"exit_code": 3}, (), 3, "the agent ended with exit code 3"),
        ({"run": "echo x > b.txt; sleep 600"}, ("--timeout", "2"), 6, "it ran out of time"),
    ],
)
def test_the_result_is_that_of_the_agent_and_its_work_is_kept_however_it_ends(
    place: Path, response: Any, options: tuple[str, ...], code: int, reason: str
) -> None:
    fixture = {"responses": [{"files": {"a.txt": "x\n"}, **response}]}
    exit_code, told, _ = _harness(place, *options, fixture=fixture)
    assert (exit_code, told["ok"], told["data"]["reason"]) == (code, not code, reason)
    assert told["data"]["status"] == ("failed" if code else "completed")
    assert told["data"]["tokens_used"] == (0 if code else 2)
    assert told.get("error", {}).get("message", "") == reason
    kept = json.loads((place.parent / "run" / "result.json").read_bytes())
    assert (kept["exit_code"], kept["status"]) == (code, told["data"]["status"])
    assert _log(place, "%s") == "[ann] Complete t-1"


def test_a_file_of_secrets_is_read_deleted_and_kept_out_of_the_log(place: Path) -> None:
    secrets = place.parent / "secrets"
    secrets.write_text("# keys\nMY_API_KEY=s3cr3t-Value-9x8y7z\n\nexport OTHER='two words'\n")
    run = 'echo "key $MY_API_KEY"; [ "$OTHER" = "two words" ]'
    code, _, _ = _harness(
        place, fixture={"responses": [{"run": run}]}, CALORON_SECRETS_FILE=str(secrets)
    )
    assert code == 0
    assert not secrets.exists()
    output = (place.parent / "run" / "output.log").read_text("utf-8")
    assert "s3cr3t" not in output
    for file in (place.parent / "run").rglob("*"):
        assert not file.is_file() or b"s3cr3t" not in file.read_bytes()


def test_a_bad_file_of_secrets_is_deleted_too_and_never_repeated(place: Path) -> None:
    secrets = place.parent / "secrets"
    secrets.write_text("GOOD=1\ns3cr3t without a name\n")
    code, told, said = _harness(place, CALORON_SECRETS_FILE=str(secrets))
    assert (code, secrets.exists()) == (2, False)
    assert "line 2" in told["error"]["message"]
    assert "s3cr3t" not in json.dumps(told) + said
    assert _harness(place, CALORON_SECRETS_FILE=str(secrets))[0] == 3


def test_a_secret_that_was_committed_is_found(place: Path, tmp_path: Path) -> None:
    base = _log(place, "%H")
    secrets = tmp_path / "secrets"
    secrets.write_text("MY_API_KEY=s3cr3t-Value-9x8y7z\n")
    mirror = tmp_path / "mirror.git"
    subprocess.run(["git", "clone", "-q", "--bare", str(place), str(mirror)], check=True)
    code, told, _ = _harness(
        place, fixture={"responses": [{"run": 'printf %s "$MY_API_KEY" > key.txt'}]},
        CALORON_SECRETS_FILE=str(secrets), CALORON_BASE_COMMIT=base, CALORON_MIRROR=str(mirror),
        CALORON_REPOSITORY=str(mirror), CALORON_BRANCH="agent/ann/s-1",
    )  # fmt: skip
    assert code == 1
    assert "hold the value of MY_API_KEY" in told["error"]["message"]


def test_without_a_sandbox_nothing_is_run_unless_the_user_insists(
    place: Path, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    names = "git sh env find sed grep head tail tr mktemp cat chmod sort du cut"
    for name in names.split():
        (tools / name).symlink_to(f"/usr/bin/{name}")
    fixture = {"responses": [{"files": {"a.txt": "x\n"}}]}
    code, told, _ = _harness(place, fixture=fixture, PATH=str(tools))
    assert (code, told["error"]["code"]) == (8, "PRECONDITION_FAILED")
    assert "bwrap" in told["error"]["message"]
    assert not (place / "a.txt").exists()
    code, _, _ = _harness(place, "--unsandboxed", fixture=fixture, PATH=str(tools))
    assert code == 0
    assert _log(place, "%s") == "[ann] Complete t-1"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")
@pytest.mark.parametrize(("network", "said"), [("public", "403"), ("full", "hello")])
def test_an_agent_with_the_public_network_does_not_reach_this_machine(
    place: Path, network: str, said: str
) -> None:
    """Through the proxy of its environment, if there is one, as every client does."""
    with HttpServer(lambda _: Reply("hello\n")) as server:
        look = (
            "python3 -c 'import os, urllib.error, urllib.request as r\n"
            'os.environ.pop("no_proxy", None); os.environ.pop("NO_PROXY", None)\n'
            f'try: print("said:", r.urlopen("{server.url}/").read())\n'
            'except urllib.error.HTTPError as error: print("said:", error.code)\''
        )
        fixture = {"responses": [{"run": look}]}
        code, told, stderr = _harness(place, "--network", network, fixture=fixture)
    assert code == 0, (told, stderr)
    output = (place.parent / "run" / "output.log").read_text("utf-8")
    (line,) = [line for line in output.splitlines() if line.startswith("said:")]
    assert said in line


def test_a_linked_worktree_is_refused(place: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    subprocess.run(["git", "-C", str(place), "worktree", "add", "-q", str(linked)], check=True)
    code, told, _ = _harness(place, CALORON_WORKTREE=str(linked))
    assert code == 8
    assert "linked worktree" in told["error"]["hint"]


def test_any_program_is_an_agent_and_gets_the_prompt_behind_p(place: Path) -> None:
    code, _, _ = _harness(
        place, CALORON_FRAMEWORK_CMD="printf", CALORON_FRAMEWORK_ARGS="'<%s>\\n'",
        CALORON_TASK_DESCRIPTION="Write a README", CALORON_SYSTEM_PROMPT="You are brief.",
    )  # fmt: skip
    assert code == 0
    output = (place.parent / "run" / "output.log").read_text("utf-8")
    assert output.startswith("<-p>\n<You are brief.\n\nWrite a README\n\n")


def test_the_dangerous_flag_is_for_those_who_say_that_they_mean_it(place: Path) -> None:
    env = {
        "CALORON_FRAMEWORK_CMD": "echo",
        "CALORON_FRAMEWORK_ARGS": "--dangerously-skip-permissions",
    }
    code, told, _ = _harness(place, **env)
    assert code == 2
    assert "CALORON_ALLOW_DANGEROUS_CLAUDE" in told["error"]["hint"]
    assert _harness(place, **env, CALORON_ALLOW_DANGEROUS_CLAUDE="1")[0] == 0


@pytest.mark.parametrize("allowed", [False, True])
def test_claude_code_asks_before_it_does_more_than_edit(
    place: Path, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    claude = place.parent / "claude"
    shutil.copy("/bin/true", claude)
    monkeypatch.setenv("CALORON_CLAUDE", str(claude))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x")
    env = {"CALORON_WORKTREE": str(place), "CALORON_ALLOW_DANGEROUS_CLAUDE": "1" if allowed else ""}
    settings = harness_settings(env, place.parent / "runs")
    home = place.parent / "agent-home"
    command = Harness(settings, HarnessOptions(unsandboxed=True))._command(home)
    assert ("--dangerously-skip-permissions" in command.argv) is allowed
    assert ("acceptEdits" in command.argv) is not allowed


def test_a_shell_that_does_not_answer_is_no_reason_to_stop(place: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    code, told, said = _harness(
        place, "--every", "0.1", CALORON_SHELL_URL=url, CALORON_SHELL_TOKEN="t"
    )
    assert (code, told["data"]["told"]) == (0, False)
    assert "heartbeat 1 to" in said
    code, told, _ = _harness(place, CALORON_SHELL_URL=url)
    assert code == 8
    assert "CALORON_SHELL_TOKEN" in told["error"]["message"]


@pytest.mark.parametrize("name", ["CALORON_AGENT_ID", "CALORON_TASK_ID", "CALORON_SPRINT_ID"])
def test_ids_of_another_form_are_refused(place: Path, name: str) -> None:
    code, told, _ = _harness(place, **{name: "../x"})
    assert code == 2
    assert name in told["error"]["message"]


def test_the_real_claude_code_edits_files_and_is_refused_the_rest(place: Path) -> None:
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
        code, told, _ = _harness(place, **env)
        assert (code, told["data"]["status"]) == (0, "completed")
        assert told["data"]["tokens_used"] > 0
        assert (place / "a.txt").read_text("utf-8") == "one\n"
        assert not (place / "by-bash.txt").exists()
        assert _log(place, "%s") == "[ann] Complete t-1"
        assert _harness(place, **env, CALORON_ALLOW_DANGEROUS_CLAUDE="1")[0] == 0
    assert (place / "by-bash.txt").exists()
    assert b"planted-key" not in (place.parent / "run" / "output.log").read_bytes()
