"""Options that mean the same on every command."""

from __future__ import annotations

import click

from caloron.cli import output


def _remember(context: click.Context, _parameter: click.Parameter, form: str) -> None:
    output.called(command_name(context), form)


def command_name(context: click.Context) -> str:
    """A command as the envelope names it: `caloron issue list` is `issue.list`."""
    return ".".join(context.command_path.split()[1:]) or "caloron"


#: `--output text|json`: eager, so that whatever fails later is answered in that form.
output_option = click.option(
    "--output",
    "-o",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    is_eager=True,
    expose_value=False,
    callback=_remember,
    help="Text for people, or one JSON envelope for machines.",
)

#: `--project NAME`: passed to the command as `project: str | None`.
project_option = click.option(
    "--project", "-p", metavar="NAME", help="Act on this project instead of the active one."
)
