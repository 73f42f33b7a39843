"""`introspect`, `skill` and `version` describe the arguments that the program accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import yaml

from caloron import __version__
from caloron.cli.app import COMMANDS, cli
from caloron.cli.commands.meta import leaves


def by_words(commands: list[dict[str, Any]], *before: str) -> dict[tuple[str, ...], dict[str, Any]]:
    described = {}
    for command in commands:
        words = (*before, command["name"])
        described[words] = command
        described |= by_words(command["subcommands"], *words)
    return described


def test_every_command_is_described_with_the_names_of_its_options(run) -> None:
    answer = run.data("introspect")
    assert answer["version"] == __version__
    described = by_words(answer["commands"])
    assert [words[0] for words in described if len(words) == 1] == list(COMMANDS)
    for words, command in leaves():
        options = {o["name"] for o in described[words]["options"]}
        shown = (p for p in command.params if isinstance(p, click.Option) and not p.hidden)
        real = {max(p.opts, key=len) for p in shown}
        assert options == real
        assert described[words]["examples"], words
    sprint_command = described["sprint",]
    sprint = {o["name"]: o for o in sprint_command["options"]}
    assert sprint["--project"]["type"] == "string"
    assert sprint["--parallel"]["type"] == "integer"
    assert sprint["--yes"]["type"] == "flag"
    assert sprint["--output"]["choices"] == ["text", "json", "table"]
    assert sprint["--output"]["default"] == "text"
    # Only commands without changes are idempotent.
    assert described["status",]["idempotent"]
    assert not described["project", "delete"]["idempotent"]
    assert not sprint_command["idempotent"]


def test_described_options_are_accepted(run) -> None:
    context = click.Context(cli)
    for words, command in leaves():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                parser = command.make_parser(context)
                name = max(parameter.opts, key=len)
                parser.parse_args([name] if parameter.is_flag else [name, "x"])
                assert name in parser._long_opt, words


def test_version_prints_the_version_of_the_specification(run, capsys) -> None:
    assert run.data("introspect", "--acli-version") == {"acli_version": "0.1.0"}
    version = {"tool": "caloron", "version": __version__, "acli_version": "0.1.0"}
    assert run.data("version") == version
    assert run.text("version") == f"caloron {__version__}\nacli 0.1.0\n"


def test_a_skill_names_every_command_and_every_exit_code(run, tmp_path: Path) -> None:
    out = tmp_path / "skills" / "SKILL.md"
    assert run("skill", "--out", str(out), "--dry-run")[0] == 9
    assert not out.exists()
    answer = run.data("skill", "--out", str(out))
    content = out.read_text("utf-8")
    assert answer == {"path": str(out), "content": content}
    front = yaml.safe_load(content.split("---\n")[1])
    assert front.keys() == {"name", "description", "when_to_use"}
    for words, _ in leaves():
        assert f"- `caloron {' '.join(words)}`" in content or words == ("agents",)
    assert "- 11 `STOPPED`" in content
    assert run.data("skill")["content"] == content


def test_a_skill_never_overwrites_another_file(run, tmp_path: Path, capsys) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("my notes\n")
    for options in ((), ("--dry-run",)):
        run.refused(5, "--force", "skill", "--out", str(notes), *options)
    assert notes.read_text() == "my notes\n"
    assert run("skill", "--out", str(notes), "--force")[0] == 0
    # The command replaces an older skill file, and reports that.
    notes.write_text(notes.read_text() + "old\n")
    assert "Replaced" in run.text("skill", "--out", str(notes))
    assert not notes.read_text().endswith("old\n")


def test_a_skill_is_printed_if_its_path_is_a_dash(run, tmp_path: Path) -> None:
    assert run.data("skill", "--out", "-")["path"] is None
    assert not (tmp_path / "-").exists()
