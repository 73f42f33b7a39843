"""Writes docs/commands.md, and the generated parts of docs/reference.md.

Both are made from the very objects that parse the command line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from caloron.cli.app import EXIT_CODES, is_global
from caloron.cli.commands.meta import Leaf, examples, leaves, paragraphs, summary

FILE = Path(__file__).parents[1] / "docs" / "reference.md"
MANUAL = FILE.with_name("commands.md")

_MANUAL_HEAD = """# Commands

<!-- made by scripts/reference.py -->

What `caloron COMMAND --help` says, in one page. An overview in one table, the settings and the
exit codes are in the [reference](reference.md).

| on nearly every command | means |
|---|---|
| `-o`, `--output text\\|json\\|table` | for people, or one JSON envelope for machines |
| `-p`, `--project NAME` | project to use (default: this repository's; outside of one, the active) |
| `--dry-run` | where something changes: say what would be done, do none of it, exit with 9 |
"""


def commands() -> str:
    rows = ["| command | does |", "|---|---|"]
    for words, command in leaves():
        if not isinstance(command, click.Group):
            usage = " ".join((*words, *_arguments(command)))
            place = f"{MANUAL.name}#caloron-{'-'.join(words)}"
            rows.append(f"| [`{usage}`]({place}) | {summary(command)} |")
    return "\n".join(rows)


def _arguments(command: click.Command) -> Iterator[str]:
    for argument in command.params:
        if isinstance(argument, click.Argument):
            shown = str(argument.name).upper().removesuffix("_ID")
            yield shown if argument.required else f"[{shown}]"


def exit_codes() -> str:
    rows = ["| code | name | meaning |", "|---|---|---|"]
    rows += [f"| {code} | `{name}` | {what} |" for code, (name, what) in EXIT_CODES.items()]
    return "\n".join(rows)


def manual() -> str:
    """Every command with its explanation, its options and its examples."""
    return "\n".join((_MANUAL_HEAD, *(_entry(leaf) for leaf in leaves())))


def _entry(leaf: Leaf) -> str:
    command, name = leaf.command, " ".join(("caloron", *leaf.words))
    usage = " ".join(command.collect_usage_pieces(click.Context(command, info_name=name)))
    parts = [f"## {name}", *paragraphs(command), f"```text\n{name} {usage}\n```"]
    options = [o for o in command.params if isinstance(o, click.Option) and not o.hidden]
    own = [o for o in options if not is_global(o)]
    if own:
        rows = [f"| {_cell(_names(o))} | {_cell(_meaning(o))} |" for o in own]
        parts.append("\n".join(("| option | meaning |", "|---|---|", *rows)))
    if lines := examples(command):
        parts.append("\n".join(("```sh", *lines, "```")))
    return "\n\n".join(parts) + "\n"


def _names(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in sorted(option.opts, key=len))
    if option.is_flag:
        return names
    value = option.metavar or str(option.name).upper()
    if isinstance(option.type, click.Choice):
        value = "|".join(map(str, option.type.choices))
    return f"{names} `{value}`"


def _meaning(option: click.Option) -> str:
    shown = option.show_default and option.default not in (None, "", False)
    return f"{option.help or ''}{f' Default: `{option.default}`.' if shown else ''}"


def _cell(content: str) -> str:
    return content.replace("|", "\\|").replace("<", "&lt;")


def text(old: str) -> str:
    """The file with its generated parts replaced; the other parts stay."""
    for part, content in (("commands", commands()), ("exit codes", exit_codes())):
        begin, end = f"<!-- {part}: scripts/reference.py -->", f"<!-- end of {part} -->"
        before, has_begin, rest = old.partition(begin)
        _, has_end, after = rest.partition(end)
        if not (has_begin and has_end):
            raise SystemExit(f"{FILE} has no place for {part}: {begin} … {end}")
        old = f"{before}{begin}\n{content}\n{end}{after}"
    return old


def files() -> Iterator[tuple[Path, str]]:
    """Each generated file with its content."""
    yield FILE, text(FILE.read_text("utf-8"))
    yield MANUAL, manual()


def stale() -> list[Path]:
    """The files that differ from the commands."""
    return [f for f, wanted in files() if not f.exists() or f.read_text("utf-8") != wanted]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(1 if stale() else 0)
    for file, content in files():
        file.write_text(content, "utf-8")
        print(f"wrote {file}")
