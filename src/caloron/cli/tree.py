"""The commands as data, read from the very objects that parse the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from caloron import __version__
from caloron.cli.version import ACLI_VERSION

#: What each exit code means, for `skill` and for the reference.
EXIT_CODES = {
    0: ("SUCCESS", "done; of a sprint: every task is Done"),
    1: ("GENERAL_ERROR", "a defect of Caloron, whose log is named; or you said no"),
    2: ("INVALID_ARGS", "usage: an argument, a plan, a fixture, a setting"),
    3: ("NOT_FOUND", "a project, sprint, task, issue, pull request or file is not there"),
    4: ("PERMISSION_DENIED", "the system does not let you read or write something"),
    5: ("CONFLICT", "held by another process, or there already"),
    7: ("UPSTREAM_ERROR", "the forge failed"),
    8: ("PRECONDITION_FAILED", "something must be put right first"),
    9: ("DRY_RUN", "a dry run: nothing was done"),
    10: ("TASKS_NOT_DONE", "the sprint ended with tasks not done"),
    11: ("STOPPED", "the sprint was stopped and can be resumed"),
    12: ("GRAPH_FAILED", "a graph or a stage failed while it ran, or its examples did"),
    130: ("INTERRUPTED", "Ctrl-C"),
}

_EXAMPLES = re.compile(r"^\s*Examples?:\s*$")


class Leaf(NamedTuple):
    """A command that can be run, with the words that call it."""

    words: tuple[str, ...]
    command: click.Command


def describe() -> dict[str, Any]:
    """The whole program: its commands with their arguments, options and examples."""
    root, context = _root()
    commands = [_command(found, name) for name, found in _children(root, context)]
    return {
        "name": "caloron",
        "version": __version__,
        "acli_version": ACLI_VERSION,
        "commands": commands,
    }


def leaves() -> Iterator[Leaf]:
    """Every command that does something, groups left out."""
    root, context = _root()
    yield from _leaves(root, context, ())


def summary(command: click.Command) -> str:
    """The first paragraph of the help, in one line."""
    return " ".join((command.help or "").partition("\n\n")[0].split())


def _root() -> tuple[click.Group, click.Context]:
    from caloron.cli.main import cli

    return cli, click.Context(cli, info_name="caloron")


def _children(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if found is not None and not found.hidden:
            yield name, found


def _leaves(
    command: click.Command, context: click.Context, words: tuple[str, ...]
) -> Iterator[Leaf]:
    if not isinstance(command, click.Group):
        yield Leaf(words, command)
        return
    if command.invoke_without_command and words:
        yield Leaf(words, command)
    for name, found in _children(command, context):
        yield from _leaves(found, context, (*words, name))


def _command(command: click.Command, name: str) -> dict[str, Any]:
    told: dict[str, Any] = {
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
        told["subcommands"] = [_command(found, n) for n, found in _children(command, context)]
    else:
        # What changes something can be tried without doing it; all else may be run at any time.
        told["idempotent"] = not any(o["name"] == "--dry-run" for o in told["options"])
    told["examples"] = _examples(command)
    return told


def _argument(parameter: click.Argument) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "type": _type(parameter),
        "required": parameter.required,
        "multiple": parameter.nargs != 1,
    } | _choices(parameter)


def _option(parameter: click.Option) -> dict[str, Any]:
    name = max(parameter.opts, key=len)
    default = None if parameter.required else parameter.get_default(click.Context(_NOBODY))
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


_NOBODY = click.Command("nobody")


def _type(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return "flag"
    name = parameter.type.name
    return {"text": "string", "integer range": "integer", "float range": "number"}.get(name, name)


def _choices(parameter: click.Parameter) -> dict[str, Any]:
    kind = parameter.type
    return {"choices": [str(c) for c in kind.choices]} if isinstance(kind, click.Choice) else {}


def _examples(command: click.Command) -> list[str]:
    """The command lines of the last part of the help."""
    lines = iter((command.help or "").splitlines())
    for line in lines:
        if _EXAMPLES.match(line):
            break
    return [line.strip() for line in lines if "caloron " in line]
