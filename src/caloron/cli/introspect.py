"""`caloron introspect`: the commands as data, for programs that call this one."""

from __future__ import annotations

import click

from caloron.cli import output
from caloron.cli.options import output_option
from caloron.cli.tree import describe
from caloron.cli.version import ACLI_VERSION


@click.command()
@click.option("--acli-version", is_flag=True, help="Only the version of the ACLI specification.")
@output_option
def introspect(acli_version: bool) -> None:
    """Describe every command: its arguments, options, defaults and examples.

    \b
    Examples:
      caloron introspect
      caloron introspect --output json
    """
    if acli_version:
        output.success("introspect", {"acli_version": ACLI_VERSION}, ACLI_VERSION)
        return
    told = describe()
    lines = [f"caloron {told['version']}"]
    for command in told["commands"]:
        lines.append(f"  {command['name']:<11} {command['description']}")
        lines += [f"    {sub['name']:<9} {sub['description']}" for sub in command["subcommands"]]
    lines.append("All of it as data: caloron introspect --output json")
    output.success("introspect", told, "\n".join(lines))
