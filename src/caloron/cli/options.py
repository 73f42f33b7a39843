"""Options that mean the same on every command."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from caloron.cli import output
from caloron.errors import UsageError
from caloron.ledger.locate import ProjectPaths, require_id
from caloron.store import log

FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)


_FORM = "caloron.output"


def _remember(context: click.Context, _parameter: click.Parameter, form: str) -> None:
    given = context.get_parameter_source("output") is not ParameterSource.DEFAULT
    if given:
        context.meta[_FORM] = form
    elif isinstance(context.command, click.Group):
        # The command behind it may say more; until then what was seen at the start holds.
        return
    output.called(command_name(context), context.meta.get(_FORM, form))


def command_name(context: click.Context) -> str:
    """A command as the envelope names it: `caloron issue list` is `issue.list`."""
    return ".".join(context.command_path.split()[1:]) or "caloron"


def _be_verbose(_context: click.Context, _parameter: click.Parameter, verbose: bool) -> None:
    if verbose:
        log.set_verbose(True)


def _verbose(*, hidden: bool) -> Callable[[FC], FC]:
    return click.option(
        "--verbose",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        hidden=hidden,
        callback=_be_verbose,
        help="Log everything, and print the log on stderr as well.",
    )


#: `caloron --verbose …`.
verbose_option = _verbose(hidden=False)

_output = click.option(
    "--output",
    "-o",
    type=click.Choice(output.FORMS),
    default="text",
    show_default=True,
    is_eager=True,
    expose_value=False,
    callback=_remember,
    help="Text or a table for people, or one JSON envelope for machines.",
)


def output_option(command: FC) -> FC:
    """`--output text|json|table`: eager, so that whatever fails later is answered in that form.

    `--verbose` is accepted behind the command, too; the help shows it once, before the command.
    """
    return _output(_verbose(hidden=True)(command))


#: `--project NAME`: passed to the command as `project: str | None`.
project_option = click.option(
    "--project",
    "-p",
    metavar="NAME",
    help="Project to use (default: this repository's; outside of a repository the active one).",
)

#: `--dry-run`: passed on as `dry_run: bool`; the command answers with `output.dry_run`.
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Say what would be done, do none of it, and exit with 9."
)


def named_sprint(
    _context: click.Context, _parameter: click.Parameter, given: str | None
) -> str | None:
    """A sprint as it was named; a variable that a script forgot to set does not mean the last."""
    if given is not None and not given.strip():
        raise UsageError(
            f"SPRINT is {given!r}, which names no sprint",
            hint="give its id or number (caloron history), or leave it out for the last one",
        )
    return given


def sprint_name(project: ProjectPaths, given: str) -> str:
    """A sprint as the ledger knows it; its number alone is enough."""
    require_id(given, "sprint")
    return f"{project.name}-{int(given)}" if given.isdigit() else given


def is_text(given: str) -> bool:
    """Whether an argument is text, and not bytes that only look like an argument."""
    return not any("\ud800" <= letter <= "\udfff" for letter in given)


class Finite(click.FloatRange):
    """A number in a range; what is not a number is in none."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number that can be counted with.", param, ctx)
        return number


def choice_options(command: FC) -> FC:
    """What a user decides for one run of a sprint; passed on as keywords."""
    options = (
        click.option(
            "--budget",
            "budget_usd",
            type=Finite(min=0, min_open=True, max=1e6),
            metavar="USD",
            help="What the sprint may cost in all (setting budget_usd).",
        ),
        click.option(
            "--allow-red", is_flag=True, help="Begin although main fails its own verification."
        ),
        click.option(
            "--unsandboxed",
            is_flag=True,
            help="Let agents run as you, with all your files: only where nothing else can be done.",
        ),
        click.option("--debug", is_flag=True, help="Print what agents are asked."),
    )
    for option in reversed(options):
        command = option(command)
    return command
