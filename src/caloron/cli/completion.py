"""`caloron completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click

from caloron.cli.options import output_option
from caloron.cli.output import success

_VARIABLE = "_CALORON_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@output_option
def completion(shell: str) -> None:
    """Print the script that lets SHELL complete commands and options with the tab key.

    \b
    Examples:
      eval "$(caloron completion bash)"
      caloron completion zsh > ~/.zfunc/_caloron
      caloron completion fish > ~/.config/fish/completions/caloron.fish
    """
    from click.shell_completion import get_completion_class

    from caloron.cli.main import cli

    found = get_completion_class(shell)
    assert found is not None, shell
    # The script alone: `source()` would first run the shell to ask for its version.
    complete = found(cli, {}, "caloron", _VARIABLE)
    script = complete.source_template % complete.source_vars()
    success("completion", {"shell": shell, "script": script}, script.strip("\n"))
