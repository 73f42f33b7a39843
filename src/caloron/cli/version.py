"""`caloron version`: which Caloron this is."""

from __future__ import annotations

import click

from caloron import __version__
from caloron.cli.options import output_option
from caloron.cli.output import success

ACLI_VERSION = "0.1.0"


@click.command()
@output_option
def version() -> None:
    """Print the version of Caloron and of the ACLI specification it follows.

    \b
    Example:
      caloron version --output json
    """
    data = {"tool": "caloron", "version": __version__, "acli_version": ACLI_VERSION}
    success("version", data, f"caloron {__version__}\nacli {ACLI_VERSION}")
