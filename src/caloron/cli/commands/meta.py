"""Commands about the program itself: `version`, `introspect`, `skill`, `completion`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from caloron import __version__
from caloron.cli.app import EXIT_CODES, Answer, DryRun, Name, command, planned
from caloron.cli.files import is_own_file, write_file
from caloron.errors import CaloronError, UsageError
from caloron.ledger import locate
from caloron.store.lock import holder

ACLI_VERSION = "0.1.0"


@command(examples=["caloron version --output json"])
def version() -> Answer:
    """Print the version of Caloron and of the ACLI specification it follows."""
    data = {"tool": "caloron", "version": __version__, "acli_version": ACLI_VERSION}
    return Answer(data, f"caloron {__version__}\nacli {ACLI_VERSION}")


@command("help", examples=["caloron help", "caloron help config set"])
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
def help_command(words: tuple[str, ...]) -> Answer:
    """Show the help of COMMAND, or the list of all commands."""
    command: click.Command
    command, context = _root()
    for word in words:
        if not isinstance(command, click.Group):
            raise UsageError(
                f"`{context.command_path}` has no command {word!r}",
                hint=f"try: caloron help {' '.join(words[:-1])}",
            )
        name, child, _ = command.resolve_command(context, [word])
        assert child is not None
        command, context = child, click.Context(child, parent=context, info_name=name)
    text = context.get_help()
    return Answer({"command": " ".join(context.command_path.split()[1:]), "help": text}, text)


def next_step() -> Answer:
    """The next sensible command in this folder, for `caloron` alone."""
    what, step = _next_step()
    data = {"message": what, "next": step}
    more = "All commands: caloron help. One of them: caloron help COMMAND."
    return Answer(data, f"{what}\n\n  {step}\n\n{more}")


def _next_step() -> tuple[str, str]:
    start = 'caloron sprint "what you want to have"'
    if not locate.has_current_project():
        repository = locate.repository_here()
        if repository is None:
            return "This folder is not in a git repository. Go to one, and start a sprint:", start
        return f"{repository} has no project yet. Your first sprint creates it:", start
    try:
        paths = locate.find_project()
        if engine := holder(paths.engine_lock):
            return f"Sprint {engine.get('sprint', '')} is running.", "caloron status"
        from caloron.cli.commands.inspect.report import inbox

        needs = inbox.callback(project=None).data["items"] if inbox.callback else []
    except CaloronError as error:
        return f"This project cannot be read: {error}", error.hint or "caloron status"
    if needs:
        return f"Sprint {needs[0]['sprint_id']}: {needs[0]['why']}", needs[0]["commands"][0]
    return f"Project {paths.name} waits for its next goal.", start


class Leaf(NamedTuple):
    """A command that can be run, with the words that call it."""

    words: tuple[str, ...]
    command: click.Command


def describe() -> dict[str, Any]:
    """The whole program as data: its commands with their arguments, options and examples."""
    root, context = _root()
    commands = [_command(child, name) for name, child in _children(root, context)]
    return {
        "name": "caloron",
        "version": __version__,
        "acli_version": ACLI_VERSION,
        "commands": commands,
    }


def leaves() -> Iterator[Leaf]:
    """Every command that can be run, also a group that does something by itself."""
    root, context = _root()
    yield from _leaves(root, context, ())


def paragraphs(command: click.Command) -> list[str]:
    """The paragraphs of a command's help."""
    parts = re.split(r"\n\s*\n", command.help or "")
    return ["\n".join(line for line in part.splitlines() if line != "\b") for part in parts]


def examples(command: click.Command) -> list[str]:
    return list(getattr(command, "examples", ()))


def summary(command: click.Command) -> str:
    """The first paragraph of the help, in one line."""
    return " ".join(paragraphs(command)[0].split())


def _root() -> tuple[click.Group, click.Context]:
    from caloron.cli.app import cli

    return cli, click.Context(cli, info_name="caloron")


def _children(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        child = group.get_command(context, name)
        if child is not None and not child.hidden:
            yield name, child


def _leaves(
    command: click.Command, context: click.Context, words: tuple[str, ...]
) -> Iterator[Leaf]:
    if not isinstance(command, click.Group):
        yield Leaf(words, command)
        return
    if command.invoke_without_command and words:
        yield Leaf(words, command)
    for name, child in _children(command, context):
        yield from _leaves(child, context, (*words, name))


def _command(command: click.Command, name: str) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": name,
        "description": summary(command),
        "arguments": [_argument(p) for p in command.params if isinstance(p, click.Argument)],
        "options": [
            _option(p) for p in command.params if isinstance(p, click.Option) and not p.hidden
        ],
        "subcommands": [],
    }
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name)
        entry["subcommands"] = [_command(child, n) for n, child in _children(command, context)]
    else:
        # Every command that changes something has --dry-run.
        entry["idempotent"] = not any(o["name"] == "--dry-run" for o in entry["options"])
    entry["examples"] = examples(command)
    return entry


def _argument(parameter: click.Argument) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "type": _type(parameter),
        "required": parameter.required,
        "multiple": parameter.nargs != 1,
    } | _choices(parameter)


def _option(parameter: click.Option) -> dict[str, Any]:
    name = max(parameter.opts, key=len)
    default = None if parameter.required else parameter.get_default(click.Context(_ANY_COMMAND))
    plain = isinstance(default, str | int | float | bool)
    return {
        "name": name,
        "aliases": [other for other in parameter.opts if other != name],
        "type": _type(parameter),
        "metavar": None if parameter.is_flag else parameter.metavar or str(parameter.name).upper(),
        "description": parameter.help or "",
        "default": default if plain else None,
        "required": parameter.required,
        "multiple": parameter.multiple,
    } | _choices(parameter)


_ANY_COMMAND = click.Command("any")


def _type(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return "flag"
    name = parameter.type.name
    return "string" if name in ("text", "Path") or isinstance(parameter.type, Name) else name


def _choices(parameter: click.Parameter) -> dict[str, Any]:
    kind = parameter.type
    return {"choices": [str(c) for c in kind.choices]} if isinstance(kind, click.Choice) else {}


@command(examples=["caloron introspect", "caloron introspect --output json"])
@click.option("--acli-version", is_flag=True, help="Only the version of the ACLI specification.")
def introspect(acli_version: bool) -> Answer:
    """Describe every command: its arguments, options, defaults and examples."""
    if acli_version:
        return Answer({"acli_version": ACLI_VERSION}, ACLI_VERSION)
    program = describe()
    lines = [f"caloron {program['version']}"]
    for entry in program["commands"]:
        lines.append(f"  {entry['name']:<11} {entry['description']}")
        lines += [f"    {sub['name']:<9} {sub['description']}" for sub in entry["subcommands"]]
    lines.append("All of it as data: caloron introspect --output json")
    return Answer(program, "\n".join(lines))


_HEAD = """---
name: caloron
description: Turn a goal into reviewed, tested, merged code with a team of agents.
when_to_use: A change is large enough for several tasks, or must survive crashes, reviews and \
verification on its way to main.
---

# Caloron {version}

A goal becomes a plan of tasks; agents do them side by side in sandboxes; each result is reviewed,
verified on top of main, and merged on the project's own forge. It can be stopped and resumed.

Start like this:

```sh
cd ~/src/shop
caloron sprint "Add a discount code to the basket" --yes --output json
caloron report --output json
caloron apply --output json
```
"""

#: The first bytes of every SKILL.md of ours.
_FIRST_BYTES = b"---\nname: caloron\n"

_OUTPUT = """## Answers

`--output json` prints one envelope on standard output: `{"ok": true, "command", "data", "meta"}` or
`{"ok": false, "command", "error": {"code", "message", "hint"}, "meta"}`. With text, errors go to
standard error. A dry run answers `{"ok": true, "dry_run": true, "planned_actions": […]}`.
"""


@command(
    dry_run=True, examples=["caloron skill", "caloron skill --out .claude/skills/caloron/SKILL.md"]
)
@click.option(
    "--out",
    metavar="FILE",
    help="Write it to this file, and create missing folders; `-` prints it.",
)
@click.option("--force", is_flag=True, help="Overwrite a file with other content.")
def skill(out: str | None, force: bool, dry_run: bool) -> Answer | DryRun:
    """Print a SKILL.md that teaches an agent to use Caloron, made from the commands themselves."""
    content = skill_text()
    out = None if out == "-" else out
    if out is None:
        answer = Answer({"path": None, "content": content}, content.rstrip("\n"))
        return DryRun() if dry_run else answer
    path = Path(out).absolute()
    replaced = is_own_file(path, _FIRST_BYTES, "SKILL.md of Caloron", force=force)
    if dry_run:
        return DryRun(planned("write", str(path), bytes=len(content.encode())))
    write_file(path, content)
    text = f"{'Replaced' if replaced else 'Wrote'} {path}."
    return Answer({"path": str(path), "content": content}, text)


def skill_text() -> str:
    """The whole SKILL.md."""
    described = [
        (" ".join(("caloron", *words)), _command(command, words[-1]))
        for words, command in leaves()
        if not isinstance(command, click.Group)
    ]
    index = "\n".join(f"- `{name}`: {command['description']}" for name, command in described)
    sections = "\n".join(_section(name, command) for name, command in described)
    codes = "\n".join(f"- {code} `{name}`: {what}" for code, (name, what) in EXIT_CODES.items())
    head = _HEAD.format(version=__version__)
    return f"{head}\n## Commands\n\n{index}\n\n{sections}\n{_OUTPUT}\n## Exit codes\n\n{codes}\n"


def _section(name: str, command: dict[str, Any]) -> str:
    words = [a["name"].upper() for a in command["arguments"]]
    lines = [f"## {' '.join((name, *words))}", "", command["description"], ""]
    for option in command["options"]:
        default = option["default"]
        shown = "" if default in (None, False, "") else f" (default `{default}`)"
        lines.append(f"- `{option['name']}`: {option['description']}{shown}")
    if command["examples"]:
        lines += ["", "```sh", *command["examples"], "```"]
    return "\n".join((*lines, ""))


_VARIABLE = "_CALORON_COMPLETE"


@command(
    examples=[
        'eval "$(caloron completion bash)"',
        "caloron completion zsh > ~/.zfunc/_caloron",
        "caloron completion fish > ~/.config/fish/completions/caloron.fish",
    ]
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> Answer:
    """Print the script that completes commands and options in SHELL."""
    from click.shell_completion import get_completion_class

    from caloron.cli.app import cli

    completion_class = get_completion_class(shell)
    assert completion_class is not None, shell
    # The script alone: `source()` would first run the shell to ask for its version.
    complete = completion_class(cli, {}, "caloron", _VARIABLE)
    script = complete.source_template % complete.source_vars()
    return Answer({"shell": shell, "script": script}, script.strip("\n"))
