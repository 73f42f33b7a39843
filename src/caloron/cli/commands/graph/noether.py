"""`caloron noether`: our stages in the store of a real Noether."""

from __future__ import annotations

import json
from pathlib import Path

import click

from caloron.cli import output
from caloron.cli.app import dry_run_option, output_option
from caloron.cli.format import counted
from caloron.store import log

_UPSTREAM = ("UPSTREAM_ERROR", 7)


@click.group()
def noether() -> None:
    """Use the stages of Caloron in Noether.

    \b
    Example:
      caloron noether register
    """


@noether.command()
@click.option("--binary", metavar="PROGRAM", help="Noether's program (NOETHER_BIN, noether).")
@click.option(
    "--ids",
    "file",
    default="stage_ids.json",
    show_default=True,
    metavar="FILE",
    help="Where the ids by name are written.",
)
@dry_run_option
@output_option
def register(binary: str | None, file: str, dry_run: bool) -> int:
    """Add every stage of the catalogue to Noether's store, and write down their ids.

    The store is the one that Noether itself uses (NOETHER_HOME). Each stage calls `caloron stage
    run`, so that Caloron must be installed there.

    \b
    Examples:
      caloron noether register
      caloron noether register --binary ~/bin/noether --ids compositions/stage_ids.json
    """
    from caloron.engine.graphs.noether import find_binary, register_all
    from caloron.stages.catalogue import catalogue_stages
    from caloron.store.files import write_atomic

    if dry_run:
        planned = [{"action": "add", "target": stage.name} for stage in catalogue_stages()]
        return output.dry_run("noether.register", [*planned, {"action": "write", "target": file}])
    done = register_all(find_binary(binary))
    if done.ids:
        known = _known(Path(file)) if done.failures else {}
        ids = dict(sorted((known | done.ids).items()))
        write_atomic(Path(file), (json.dumps(ids, indent=2) + "\n").encode())
    for warning in done.warnings:
        output.note(f"warning: {warning}")
    data = {"file": file, "ids": done.ids, "failures": done.failures}
    if done.failures:
        said = "\n".join(f"{name}: {why}" for name, why in done.failures.items())
        code, exit_code = _UPSTREAM
        message = f"{counted(len(done.failures), 'stage')} not added:\n{said}"
        output.failure("noether.register", code, message, data=data)
        return exit_code
    text = f"{counted(len(done.ids), 'stage')} registered; their ids are in {file}."
    output.success("noether.register", data, text)
    return 0


def _known(file: Path) -> dict[str, str]:
    """The ids of an earlier registration: what failed now may still be there."""
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log.warning("cannot read the ids of an earlier registration", error=error, path=file)
        return {}
    return found if isinstance(found, dict) else {}
