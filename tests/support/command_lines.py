"""Checks a line with `caloron …` in it against the very objects that parse the command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click

from caloron.cli.app import cli
from caloron.cli.commands.agent_state.calls import CALLS, MissingFlag, parse
from caloron.cli.commands.agent_state.main import split
from caloron.errors import UsageError

_ENDS_COMMAND = frozenset({";", "&", "&&", "|", "||", "(", ")"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
#: What stands for something of the reader's or their shell's: `N`, `TASK`, `…`, `<goal>`, `$$`.
_PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*|…|<[^>]+>|\$\$")


def calls(line: str) -> Iterator[list[str]]:
    """The words after `caloron` in each call of it that a shell line makes."""
    without_numbers = re.sub(r"(?<=\s)\d(?=[<>])", "", line)  # 2>&1
    lexer = shlex.shlex(without_numbers, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word in _ENDS_COMMAND:
            yield from _call(words)
            words = []
        else:
            words.append(word)


def _call(words: list[str]) -> Iterator[list[str]]:
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words = words[1:]
    if words[:1] == ["caloron"]:
        yield _without_redirections(words[1:])


def _without_redirections(words: list[str]) -> list[str]:
    for number, word in enumerate(words):
        if set(word) <= set("<>&") and word:
            return words[:number]
    return words


def synopsis_calls(span: str) -> Iterator[list[str]]:
    """Yield the calls of code in a text, where `[…]` is optional and `a|b` are choices."""
    if span.split()[:1] == ["caloron"]:
        plain = re.sub(r"\[([^\]]*)\]", r"\1", span)
        quoted = re.sub(r'(?<![\w"])([\w.-]+)(\|[\w.-]+)+', r"\1", plain)
        yield from calls(quoted)


def problem(words: list[str], *, whole: bool = True) -> str:
    """Return why the program refuses the line, or an empty text.

    `whole`: arguments that a command needs must be there; a text may name a command alone.
    """
    if words[:1] == ["agent-state"] and words[1:2] != ["--output"]:
        return _agent_state_problem(words[1:], whole=whole)
    command: click.Command = cli
    context = click.Context(cli, info_name="caloron")
    while isinstance(command, click.Group):
        rest = [word for word in words if not word.startswith("-")]
        if not rest:
            break
        if _PLACEHOLDER.fullmatch(rest[0]):
            return ""
        subcommand = command.get_command(context, rest[0])
        if subcommand is None:
            if command.invoke_without_command and command is not cli:
                break
            return f"there is no command {context.command_path} {rest[0]}"
        words = [*words[: words.index(rest[0])], *words[words.index(rest[0]) + 1 :]]
        command, context = subcommand, click.Context(subcommand, info_name=rest[0], parent=context)
    try:
        return _refused(command, context, words, whole=whole)
    except click.UsageError as error:
        return f"{context.command_path}: {error.format_message()}"


def _agent_state_problem(words: list[str], *, whole: bool) -> str:
    """Return the problem of a line for a command with a parser of its own, or an empty text."""
    script, sub, rest, _, wants_help = split(words)
    if not script or _PLACEHOLDER.fullmatch(script) or wants_help:
        return ""
    if script not in CALLS:
        return f"there is no script agent-state {script}"
    if sub not in CALLS[script]:
        allowed = (not sub and not whole) or bool(_PLACEHOLDER.fullmatch(sub))
        return "" if allowed else f"agent-state {script} has no {sub}"
    try:
        parse(CALLS[script][sub], rest)
    except MissingFlag as error:
        return str(error) if whole else ""
    except UsageError as error:
        return str(error) if whole or rest else ""
    return ""


def _refused(
    command: click.Command, context: click.Context, words: list[str], *, whole: bool
) -> str:
    """Parse without running: no callback is called."""
    parsed, left, _ = command.make_parser(context).parse_args(list(words))
    if left and not isinstance(command, click.Group):
        return f"{context.command_path} takes no {left[0]!r}"
    for parameter in command.params:
        value = parsed.get(parameter.name or "")
        words_of_value = value if isinstance(value, list | tuple) else (value,)
        if whole and parameter.required and not isinstance(value, str | tuple | list):
            raise click.MissingParameter(ctx=context, param=parameter)
        for word in words_of_value:
            if isinstance(word, str) and not _PLACEHOLDER.fullmatch(word):
                parameter.type.convert(word, parameter, context)
    return ""
