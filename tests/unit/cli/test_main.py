"""The frame of the program: help, refusals, internal errors and exit codes."""

from __future__ import annotations

import errno
import json
import re
import stat
import sys

import click
import pytest

from caloron import __version__
from caloron.cli import app as program
from caloron.cli.app import COMMANDS, cli, main
from caloron.cli.commands.meta import leaves, summary
from caloron.errors import InUse


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CALORON_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def failing(monkeypatch):
    """Let `caloron init` raise an error of the test."""

    def install(error: BaseException) -> None:
        @click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
        def command() -> None:
            raise error

        monkeypatch.setattr(program.LazyGroup, "get_command", lambda *_: command)

    return install


def test_help_names_every_command_with_one_line(capsys):
    assert main(["--help"]) == 0
    reply = capsys.readouterr().out
    for name, (_, line) in COMMANDS.items():
        assert f"  {name} " in reply
        assert line in reply


@pytest.mark.parametrize(
    ("line", "words"), [([], "caloron sprint"), (["--version"], f"caloron {__version__}\n")]
)
def test_no_command_at_all_shows_the_help_and_an_option_the_version(capsys, line, words):
    assert main(line) == 0
    assert words in capsys.readouterr().out


def is_group(name):
    command = cli.get_command(click.Context(cli), name)
    return isinstance(command, click.Group) and not command.invoke_without_command


#: Words of a private dialect: the glossary has the common ones.
_FORBIDDEN = r"told|whoever|somebody|nobody|anew|besides?|held|looks? back|morning page|po"


@pytest.mark.parametrize("leaf", list(leaves()), ids=lambda leaf: " ".join(leaf.words))
def test_the_help_of_each_command_teaches_with_an_example_in_common_words(leaf, capsys):
    assert main([*leaf.words, "-h"]) == 0
    text = capsys.readouterr().out
    assert f"caloron {' '.join(leaf.words)}" in text.partition("Examples:\n")[2]
    assert "--output" in text.partition("\nGlobal options:\n")[2]
    line = summary(leaf.command)
    assert len(line) < 90
    assert line[0].isupper()
    # An imperative: "Show", not "Shows" nor "Showing".
    assert not line.split()[0].endswith(("s", "ing", "ed", ":"))
    assert not re.findall(rf"(?i)\b(?:{_FORBIDDEN})\b", text)
    # Ranges are in words.
    assert not re.search(r"<=?x|x[<>]=", text)


def test_every_command_has_a_section_and_the_same_line_as_in_its_own_help():
    context = click.Context(cli)
    assert cli.list_commands(context) == [
        n for section in program.SECTIONS.values() for n in section
    ]
    for name, (_, line) in COMMANDS.items():
        command = cli.get_command(context, name)
        assert command is not None
        assert line.split()[0] == summary(command).split()[0], name


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["take", "--dry-run"], "apply"),
        (["projects", "list"], "project.list"),
        (["projects", "delete", "nowhere", "--force"], "project.delete"),
        (["org", "show"], "conventions.show"),
        (["kickoff", "goal", "--po-timeout=9", "--dry-run"], "sprint"),
        (["retro", "--sprint=3"], "retro"),
    ],
)
def test_earlier_names_are_accepted_and_the_answer_has_the_present_one(words, name, capsys):
    main([*words, "-o", "json"])
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["command"] == name
    assert "No such option" not in envelope.get("error", {}).get("message", "")
    assert main(["--help"]) == 0
    assert f"  {words[0]} " not in capsys.readouterr().out.replace("retro", "")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["sprnt", "go"], "did you mean sprint?"),
        (["issue", "lst"], "did you mean list?"),
        (["config", "get", "verfy"], "did you mean verify?"),
        (["zzzzzz"], "try: caloron --help"),
    ],
)
def test_a_mistyped_name_gets_a_suggestion(words, hint, capsys):
    main(["init", "shop", "--framework", "stub"])
    capsys.readouterr()
    assert main([*words, "-o", "json"]) in (2, 3)
    assert json.loads(capsys.readouterr().out)["error"]["hint"] == hint


def test_global_options_are_accepted_before_and_after_a_command(capsys):
    for name in ("shop", "other"):
        assert main(["init", name, "--framework", "stub"]) == 0
    for words in (
        ["-o", "json", "-p", "shop", "config", "get", "name"],
        ["config", "-o", "json", "-p", "shop", "get", "name"],
        ["-p", "other", "config", "get", "name", "-o", "json", "-p", "shop"],
    ):
        capsys.readouterr()
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out)["data"]["value"] == "shop"
    # A command without a project refuses one instead of acting elsewhere.
    assert main(["-p", "shop", "version"]) == 2


def test_help_of_a_command_and_of_a_subcommand(capsys):
    assert main(["help", "config", "set"]) == 0
    assert capsys.readouterr().out.startswith("Usage: caloron config set ")
    assert main(["help"]) == 0
    assert "Review and decide:" in capsys.readouterr().out
    assert main(["help", "projects", "list"]) == 0
    assert "caloron project list" in capsys.readouterr().out
    assert main(["help", "config", "set", "more"]) == 2


def test_caloron_alone_names_the_next_command(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["next"].startswith("caloron sprint ")
    assert main(["init", "shop", "--framework", "stub"]) == 0
    capsys.readouterr()
    assert main([]) == 0
    assert "shop" in capsys.readouterr().out


def test_an_unknown_command_is_a_usage_error_in_text(capsys):
    assert main(["sprnt"]) == 2
    captured = capsys.readouterr()
    assert "'sprnt'" in captured.err
    assert "hint: did you mean sprint?" in captured.err


def test_an_unknown_option_is_a_usage_error_in_json(capsys):
    assert main(["issue", "list", "--zork", "--output", "json"]) == 2
    reply = json.loads(capsys.readouterr().out)
    assert reply["ok"] is False
    assert reply["command"] == "issue.list"
    assert reply["error"]["code"] == "INVALID_ARGS"
    assert "--zork" in reply["error"]["message"]
    assert reply["error"]["hint"] == "try: caloron issue list --help"


@pytest.mark.parametrize("group", [name for name in COMMANDS if is_group(name)])
def test_a_group_without_a_command_prints_its_help(group, capsys):
    assert main([group]) == 0
    reply = capsys.readouterr()
    assert f"Usage: caloron {group}" in reply.out
    assert "Commands:" in reply.out
    assert reply.err == ""


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (InUse("busy", hint="caloron stop"), 5, "error: busy\nhint: caloron stop\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_a_caloron_error_and_an_interrupt_have_their_own_exit_codes(
    failing, capsys, error, code, text
):
    failing(error)
    assert main(["init"]) == code
    assert capsys.readouterr().err.strip("\n") == text.strip("\n")


def test_an_internal_error_is_short_on_the_terminal_and_complete_in_a_file(failing, capsys, home):
    failing(ZeroDivisionError("oh"))
    assert main(["init"]) == 1
    reply = capsys.readouterr().err
    assert "ZeroDivisionError: oh" in reply
    assert "Traceback" not in reply
    (log,) = (home / "logs").iterdir()
    assert str(log) in reply
    assert "Traceback" in log.read_text("utf-8")
    assert main(["init", "--output=json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "GENERAL_ERROR"


def report_of(home, capsys):
    """Return the report file of an internal error, and all that was written and printed."""
    (file,) = (home / "logs").glob("defect-*.log")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text("utf-8")
    log = (home / "logs" / "caloron.log").read_text("utf-8")
    return text, "".join((text, log, *capsys.readouterr()))


def test_the_report_of_an_internal_error_has_no_secret(failing, monkeypatch, capsys, home):
    home.mkdir()
    monkeypatch.setenv("SHOP_TOKEN", "hunter2-hunter2-hunter2")
    key = "sk-ant-api03-" + "A1b2C3d4" * 8
    url = "https://ada:pass4word99@forge.example/shop.git"
    monkeypatch.setattr(sys, "argv", ["caloron", "sprint", f"use {key}", "--git-url", url])
    failing(RuntimeError("the forge answered hunter2-hunter2-hunter2"))
    assert main(["init"]) == 1
    text, everything = report_of(home, capsys)
    assert "RuntimeError: the forge answered [redacted SHOP_TOKEN]" in text
    assert "raise error" in text
    assert "'sprint'" in text
    for secret in ("hunter2", key, "pass4word99"):
        assert secret not in everything


def test_the_report_has_no_value_of_a_variable_that_settings_name(
    failing, monkeypatch, capsys, home
):
    """The names of these variables do not match the patterns for secrets."""
    values = {name: f"value-of-{name.lower()}-998877" for name in
              ("FTOK", "SECOND", "HOOK", "MODEL", "OTHER")}  # fmt: skip
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    settings = ("token_env: FTOK\n", "reviewer_token_env: SECOND\n", "webhook_secret_env: HOOK\n",
                "pass_env: [MODEL, OTHER]\n", "a: [", "pass_env: 7\ntoken_env: [1]\n")  # fmt: skip
    for number, text in enumerate(settings):
        (home / "projects" / f"p{number}").mkdir(parents=True)
        (home / "projects" / f"p{number}" / "config.yml").write_text(text, "utf-8")
    monkeypatch.setattr(sys, "argv", ["caloron", "agents", "show", *values.values()])
    failing(RuntimeError(f"cannot read {[*values.values()]}"))
    assert main(["init"]) == 1
    text, everything = report_of(home, capsys)
    assert "'[redacted FTOK]'" in text
    assert "value-of" not in everything


def test_the_exit_code_that_a_command_returns_is_the_programs(monkeypatch):
    @click.command()
    def command() -> int:
        return 11

    monkeypatch.setattr(program.LazyGroup, "get_command", lambda *_: command)
    assert main(["sprint"]) == 11


@pytest.mark.parametrize(
    ("error", "code", "name"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 8, "PRECONDITION_FAILED"),
        (PermissionError(errno.EACCES, "Permission denied", "/home/x"), 4, "PERMISSION_DENIED"),
        (OSError(errno.EINVAL, "Invalid argument"), 1, "GENERAL_ERROR"),
    ],
)
def test_an_error_of_the_machine_is_no_internal_error(failing, capsys, home, error, code, name):
    failing(error)
    assert main(["init", "--output=json"]) == code
    reply = json.loads(capsys.readouterr().out)["error"]
    assert reply["code"] == name
    assert error.strerror in reply["message"]
    assert (home / "logs").exists() is (code == 1)
