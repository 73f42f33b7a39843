"""`caloron agent-state` as hosts and scripts call it, beyond the recorded transcript."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from caloron.agentstate.database import MIGRATION_NAMES, MIGRATIONS
from caloron.cli.app import main as caloron
from caloron.cli.commands.agent_state.calls import CALLS
from tests.integration.agentstate.conftest import CALORON, Answer, agent_state, called

_SOURCES = Path(__file__).parents[3] / "src"
EVERY = [(script, sub) for script, calls in CALLS.items() for sub in calls]
HEAVY = ("click", "msgspec", "yaml", "rich", "dataclasses", "caloron.domain", "caloron.ledger")


@pytest.fixture
def run(where: Path, monkeypatch: pytest.MonkeyPatch):
    """Run one command in this process."""
    monkeypatch.setenv("MF_INSTANCE_DIR", str(where))

    def call_with(*words: str, **environment: str) -> Answer:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return called(*words)

    return call_with


def words_of(script: str, sub: str) -> tuple[str, ...]:
    return (script, sub) if sub else (script,)


@pytest.mark.parametrize(("script", "sub"), EVERY)
def test_every_command_explains_itself_with_an_example(run, where, script, sub) -> None:
    result = run(*words_of(script, sub), "--help")
    assert result.code == 0
    assert f"caloron agent-state {' '.join(words_of(script, sub))}" in result.lines[-1]
    assert not where.exists()


@pytest.mark.parametrize(("script", "sub"), EVERY)
def test_a_missing_flag_is_a_usage_error_and_creates_no_database(run, where, script, sub) -> None:
    call = CALLS[script][sub]
    if not any(flag.required for flag in call.flags):
        return
    result = run(*words_of(script, sub), *(["here"] if call.positional else []))
    assert result.code == (1 if script == "scaffold" else 2)
    assert "is missing" in result.err
    assert not where.exists()


@pytest.mark.parametrize(
    "words",
    [
        ("errands", "list", "--ower", "forge"),
        ("errands", "enqueue", "--id", "--kind", "x", "--payload", "{}"),
        ("errands", "list", "extra"),
        ("errands", "enqueue", "--id", "a", "--kind", "x", "--payload", "NaN"),
        ("errands", "enqueue", "--id", "a", "--kind", "x", "--payload", "[" * 100_000),
        ("errands", "enqueue", "--id", "\udcff", "--kind", "x", "--payload", "{}"),
        ("errands", "enqueue", "--id", "a", "--kind", "x", "--payload", "{}", "--status", "done"),
        ("events", "append", "--type", "x", "--payload", "{"),
        ("events", "tail", "--limit", "-1"),
        ("hook", "onBirth"),
    ],
)
def test_a_typo_is_a_usage_error_and_creates_no_database(run, where, words) -> None:
    result = run(*words)
    assert result.code == 2
    assert result.err.startswith("error: ")
    assert not where.exists()


NASTY = (
    "", " ", "\n", "ö€\U0001d54f", "\x1b[2J\x07", "\udcff", "x" * (1 << 16), "-", "-1", "0", "1",
    "99999999999999999999", "1e999", "nan", "²", "..", "/", "[]", "{}", "null", "\"\\ud800\"",
    "a\0b",
    "pending", "done", "2026-W46", "0001-W01", "onStart", "{\"a\":" * 3000,
)  # fmt: skip
GOOD = {
    "--payload": "{}", "--notes-json": "{}", "--status": "done", "--token": "1", "--kind": "x",
    "--host": "grove",
}  # fmt: skip


@pytest.mark.parametrize(("script", "sub"), EVERY)
def test_no_value_of_a_flag_causes_an_internal_error(run, where, tmp_path, script, sub) -> None:
    call = CALLS[script][sub]
    where.mkdir(parents=True)
    path = str(tmp_path / "folder") if script in ("scaffold", "skill") else "0"
    for flag in call.flags or (None,):
        for value in NASTY:
            words = [
                f"{required.name}={GOOD.get(required.name, 'a')}"
                for required in call.flags
                if required.required and required is not flag
            ]
            words += [f"{flag.name}={value}"] if flag and flag.read else []
            if call.positional:
                words.append(path if flag else value or "0")
            if script in ("scaffold", "skill") and not flag:
                continue
            result = run(*words_of(script, sub), *words)
            assert result.code in (0, 1, 2), (words, result)
            assert (result.code == 0) or result.err.startswith("error: ")
            assert len(result.err) < 10_000
            assert "\x1b" not in result.err


def test_a_value_may_follow_its_flag_or_an_equals_sign(run) -> None:
    run("errands", "enqueue", "--kind=x", "--id=a", "--payload={}", "--notes=--dashes")
    (row,) = run("errands", "list", "--kind", "x", "--json").lines
    assert row["notes"] == "--dashes"


@pytest.mark.parametrize("word", ["-h", "-o", "-ojson", "-", "-1", "help"])
def test_a_word_like_an_option_can_be_a_value(run, where, word) -> None:
    run("errands", "enqueue", "--kind", "x", "--id", "a", "--payload", "{}", "--status",
        "waiting_human")  # fmt: skip
    answered = agent_state(where, "errands", "answer", "--id", "a", "--answer", word)
    assert (answered.code, answered.lines[0]["status"]) == (0, "pending")
    assert word in answered.lines[0]["notes"]
    run("errands", "resolve", "--id", "a", "--status", "done")
    assert agent_state(where, "errands", "reopen", "--id", "a", "--reason", word).code == 0
    assert json.loads(run("events", "tail", "--limit", "1").lines[0]["payload"])["reason"] == word
    inside = ["agent-state", "errands", "annotate", "--notes-json", json.dumps({"w": word})]
    assert caloron([*inside, "--id", "a"]) == 0


@pytest.mark.parametrize(
    "words",
    [
        ("errands", "list", "-o", "json"),
        ("errands", "list", "--output=json", "--limit", "3"),
        ("errands", "-ojson", "list"),
        ("--output", "json", "errands", "list"),
    ],
)
def test_the_output_option_may_stand_anywhere(run, where, words) -> None:
    run("errands", "enqueue", "--kind", "x", "--id", "a", "--payload", "{}")
    result = agent_state(where, *words)
    assert result.code == 0
    assert result.lines[0]["data"]["lines"][0]["id"] == "a"


@pytest.mark.parametrize(
    "words", [("errands", "-h"), ("errands", "get", "--id", "a", "-h"), ("-h",)]
)
def test_the_help_option_may_stand_anywhere(where, words) -> None:
    result = agent_state(where, *words)
    assert result.code == 0
    assert result.lines[0].startswith("Usage: caloron agent-state")


def test_an_unknown_output_format_is_a_usage_error(where) -> None:
    result = agent_state(where, "errands", "list", "--output", "xml")
    assert result.code == 2
    assert "--output must be one of text, json, table" in result.err


def test_a_lease_is_printed_renewed_and_required(run) -> None:
    run("errands", "enqueue", "--kind", "x", "--id", "a", "--payload", "{}")
    (claimed,) = run("errands", "claim", "--id", "a", "--owner", "forge", "--show-lease").lines
    assert claimed["row"]["status"] == "in_flight"
    token = str(claimed["lease"]["token"])
    (lease,) = run("errands", "renew", "--id", "a", "--token", token, "--lease-s", "60").lines
    assert lease["holder"] == "forge"
    refused = run("errands", "resolve", "--id", "a", "--status", "done", "--token", "99")
    assert refused.code == 1
    assert "is lost" in refused.err
    assert run("errands", "annotate", "--id", "a", "--notes-json", "{}").lines[0]["notes"] == "{}"
    assert run("errands", "resolve", "--id", "a", "--status", "done", "--token", token).code == 0


def test_a_person_answers_and_reopens_items(run) -> None:
    run("errands", "enqueue", "--kind", "x", "--id", "a", "--payload", "{}", "--status",
        "waiting_human")  # fmt: skip
    assert run("errands", "answer", "--id", "a", "--answer", "yes").lines[0]["status"] == "pending"
    assert run("errands", "park", "--id", "a", "--question", "sure?").code == 0
    assert run("errands", "resolve", "--id", "a", "--status", "failed").code == 0
    assert run("errands", "retry", "--id", "a", "--delay-s", "5").lines[0]["status"] == "pending"
    assert run("errands", "next", "--owner", "forge").lines == []
    assert run("errands", "claim", "--id", "a", "--owner", "forge").code == 0
    assert run("errands", "release", "--id", "a").lines[0]["status"] == "pending"
    run("errands", "resolve", "--id", "a", "--status", "cancelled")
    assert run("errands", "reopen", "--id", "a", "--reason", "after all").code == 0
    assert len(run("errands", "notes", "--id", "a").lines) == 1


def test_a_hook_takes_its_message_from_the_environment(run, where) -> None:
    message = {"correlation_id": "c-1", "capability": "review", "subject": "naïve"}
    environment = {
        "MF_AGENT_NAME": "forge", "MF_HOST": "grove", "MF_TRIGGER_TYPE": "message",
        "MF_TRIGGER_PAYLOAD_JSON": json.dumps(message),
    }  # fmt: skip
    assert run("hook", "onMessageAccepted", **environment).code == 1
    assert not where.exists()
    run("scaffold", str(where), "--host", "grove", "--agent", "forge")
    (accepted,) = run("hook", "onMessageAccepted", **environment).lines
    assert accepted["inserted"] is True
    row = accepted["row"]
    assert (row["id"], row["kind"], row["owner_agent"]) == ("c-1", "review", "forge")
    assert json.loads(row["payload"]) == message
    (again,) = run("hook", "onStart").lines
    assert (again["why"], again["row"]["id"]) == ("pending", "c-1")
    (failed,) = run("hook", "onError", MF_TRIGGER_PAYLOAD_JSON='{"id":"c-1","reason":"boom"}').lines
    assert (failed["status"], failed["notes"]) == ("failed", "boom")
    assert run("hook", "onStateTransition").lines == [str(where / "dashboard.md")]
    assert run("hook", "onShutdown").lines[0]["type"] == "shutdown"
    assert run("hook", "onMessageReplied").lines[0]["actor"] == "forge"
    assert run("hook", "onError", MF_TRIGGER_PAYLOAD_JSON="{}").code == 2
    for nonsense in ("[", "[]", "7", "\udcff", "nan"):
        assert run("hook", "onStart", MF_TRIGGER_PAYLOAD_JSON=nonsense).code == 2
    half = run("hook", "onMessageAccepted", MF_TRIGGER_PAYLOAD_JSON='{"id":"\\ud800"}')
    assert half.lines[0]["row"]["id"] == "?"


def test_the_workflows_are_a_skill_folder_with_a_manifest_that_names_each(run, tmp_path) -> None:
    folder = tmp_path / "skills" / "agent-state"
    assert {line.split()[1] for line in run("skill", str(folder)).lines} == {"wrote"}
    manifest = yaml.safe_load((folder / "arc-manifest.yaml").read_text("utf-8"))
    assert (manifest["schema"], manifest["type"]) == ("arc/v1", "skill")
    workflows = manifest["provides"]["workflows"]
    assert len(workflows) == 10
    skill = (folder / "SKILL.md").read_text("utf-8")
    assert yaml.safe_load(skill.split("---\n")[1])["name"] == "AgentState"
    for workflow in workflows:
        text = (folder / workflow["file"]).read_text("utf-8")
        assert workflow["name"] in skill
        for part in ("## Trigger", "## Action", "## Verify", "## Anti-pattern"):
            assert part in text
    assert {line.split()[1] for line in run("skill", str(folder)).lines} == {"skipped"}
    (folder / "SKILL.md").write_text("mine")
    assert run("skill", str(folder)).code == 1
    assert (folder / "SKILL.md").read_text() == "mine"
    assert run("skill", str(folder), "--force").code == 0


def test_every_command_of_a_workflow_is_valid(run, tmp_path) -> None:
    from tests.support.command_lines import calls, problem

    run("skill", str(tmp_path / "s"))
    lines = [
        line
        for page in (tmp_path / "s").rglob("*.md")
        for line in page.read_text("utf-8").splitlines()
        if line.startswith("caloron ")
    ]
    assert len(lines) == 10
    assert [(line, trouble) for line in lines for w in calls(line) if (trouble := problem(w))] == []


def test_a_scaffold_adds_missing_files_and_keeps_edited_ones(run, where) -> None:
    words = ("scaffold", str(where), "--host", "grove", "--agent", "forge")
    assert run(*words).code == 0
    (where / "CLAUDE.md").write_text("mine")
    (where / "context" / "repos.md").unlink()
    result = run(*words).lines
    assert "scaffold: created context/repos.md" in result
    assert "scaffold: skipped CLAUDE.md (exists)" in result
    assert (where / "CLAUDE.md").read_text() == "mine"


@pytest.fixture
def damaged(tmp_path: Path) -> Callable[..., Answer]:
    """Run a command in a copy of this program, after a change of its migrations."""
    installed = tmp_path / "installed"
    shutil.copytree(
        _SOURCES / "caloron", installed / "caloron", ignore=shutil.ignore_patterns("__pycache__")
    )
    migrations = installed / "caloron" / "agentstate" / "migrations"

    def call(change: Callable[[Path], object], *words: str) -> Answer:
        change(migrations)
        ran = subprocess.run(
            [*CALORON, "agent-state", *words],
            env=os.environ | {"PYTHONPATH": str(installed)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        return Answer(ran.returncode, ran.stdout.splitlines(), ran.stderr)

    return call


def _first(folder: Path) -> Path:
    return min(folder.glob("*.sql"))


def _last(folder: Path) -> Path:
    return max(folder.glob("*.sql"))


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: _last(folder).unlink(),
        lambda folder: _first(folder).unlink(),
        lambda folder: _last(folder).write_text(" \n"),
        lambda folder: _last(folder).write_text(_last(folder).read_text()[:-30]),
    ],
    ids=["last missing", "first missing", "empty", "cut"],
)
def test_strict_refuses_a_damaged_installation_before_it_creates_files(
    damaged, where, change
) -> None:
    words = ("scaffold", str(where), "--host", "grove", "--agent", "forge", "--strict")
    result = damaged(change, *words)
    assert result.code == 3
    assert "migration" in result.err
    assert "0001" in result.err or "0003" in result.err
    assert not where.exists()


def test_an_empty_migration_does_not_damage_the_home(damaged, run, where) -> None:
    words = ("scaffold", str(where), "--host", "grove", "--agent", "forge")
    result = damaged(lambda folder: _last(folder).write_text(""), *words)
    assert result.code == 1
    assert "is empty" in result.err
    assert run(*words).code == 0, "a whole installation uses the same folder"
    enqueue = ("errands", "enqueue", "--kind", "x", "--id", "a", "--payload", "{}")
    assert run(*enqueue).code == 0


def test_the_scaffold_quotes_its_folder_for_the_shell(run, tmp_path) -> None:
    where = tmp_path / "my agents; x" / "forge"
    run("scaffold", str(where), "--host", "grove", "--agent", "forge")
    lines = (where / "CLAUDE.md").read_text().splitlines()
    line = next(text for text in lines if text.startswith("export"))
    shown = subprocess.check_output(["sh", "-c", f'{line}\nprintf %s "$MF_INSTANCE_DIR"'])
    assert shown.decode() == str(where)


def test_with_output_json_the_answer_is_an_envelope(run, where, capsys) -> None:
    words = ["agent-state", "errands", "enqueue", "--kind", "x", "--id", "a", "--payload", "{}"]
    assert caloron([*words, "--output", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["data"]["lines"][0]["inserted"] is True
    assert caloron(["agent-state", "errands", "get", "--id", "z", "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["message"] == "there is no work item z"


def test_a_call_is_dispatched_without_heavy_imports(where: Path) -> None:
    code = (
        "import sys, os; sys.argv = ['caloron', 'agent-state', 'errands', *sys.argv[1:]]\n"
        "from caloron.cli import start\n"
        "start.os = type('os', (), {'_exit': staticmethod(lambda code: None)})\n"
        "start.run(); print('@', *sys.modules, file=sys.stderr)"
    )
    for words in (["list"], ["enqueue", "--kind", "x", "--id", "a", "--payload", "{}"]):
        ran = subprocess.run(
            [sys.executable, "-c", code, *words],
            env=os.environ
            | {"MF_INSTANCE_DIR": str(where), "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        modules = set(ran.stderr.rpartition("@")[2].split())
        assert "caloron.cli.commands.agent_state.main" in modules
        assert modules.isdisjoint(HEAVY)


def test_an_internal_error_is_one_line_on_the_terminal_and_complete_in_a_file(
    where: Path, tmp_path: Path
) -> None:
    code = (
        "import sys; sys.argv = ['caloron', 'agent-state', 'errands', 'list']\n"
        "from caloron.cli import start\n"
        "from caloron.cli.commands.agent_state import main as agent_state\n"
        "agent_state._select = lambda query, **values: 1 / 0\n"
        "start.run()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ
        | {"CALORON_HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "Internal error, please report it" in ran.stderr
    assert "Traceback" not in ran.stderr
    (log,) = (tmp_path / "home" / "logs").iterdir()
    assert "ZeroDivisionError" in log.read_text("utf-8")


def test_the_list_of_migrations_is_that_of_the_folder() -> None:
    assert tuple(migration.name for migration in MIGRATIONS) == MIGRATION_NAMES
