"""`caloron org`: the conventions that every agent of this home is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from caloron.agents.conventions import (
    EXAMPLE,
    ORGANISATION_FILE,
    PROJECT_FILE,
    Conventions,
    load,
    render,
)
from caloron.cli import output
from caloron.cli.options import dry_run_option, output_option
from caloron.cli.output import printable, success
from caloron.errors import AlreadyExists, CaloronError, NotFound, UsageError
from caloron.ids import is_valid_id
from caloron.ledger.locate import find_project, home
from caloron.ledger.projects import load_project
from caloron.store.files import write_atomic

project_place_option = click.option(
    "--project",
    "-p",
    metavar="NAME|DIR",
    help=f"With the {PROJECT_FILE} of this project's main, or of this directory.",
)


@click.group()
def org() -> None:
    """Make, show and check the conventions that every agent is told.

    \b
    Examples:
      caloron org init
      caloron org show --project shop
    """


@org.command("init")
@dry_run_option
@output_option
def init_organisation(dry_run: bool) -> int:
    """Write an example of the organisation's conventions, to be changed by you.

    \b
    Example:
      caloron org init
    """
    file = home() / ORGANISATION_FILE
    if file.exists():
        raise AlreadyExists(f"{file} is there already", hint="change it with your editor")
    if dry_run:
        action = {"action": "write", "target": str(file), "bytes": len(EXAMPLE.encode())}
        return output.dry_run("org.init", [action])
    write_atomic(file, EXAMPLE.encode())
    text = f"Wrote {file}. Change it, then: caloron org validate"
    success("org.init", {"path": str(file)}, text)
    return 0


@org.command()
@project_place_option
@output_option
def show(project: str | None) -> None:
    """Show the conventions as agents are told them.

    \b
    Examples:
      caloron org show
      caloron org show --project ~/src/shop
    """
    found = _load(project)
    data = _data(found)
    empty = "There are no conventions. Begin with: caloron org init"
    lines = [printable(data["rendered"]) or empty, *(f"warning: {w}" for w in found.warnings)]
    success("org.show", data, "\n".join(lines))


@org.command()
@project_place_option
@output_option
def validate(project: str | None) -> int:
    """Check the conventions: exit 0 if all is understood, 1 with warnings, 2 if they are no YAML.

    \b
    Examples:
      caloron org validate
      caloron org validate --project . --output json
    """
    found = _load(project)
    if not found.sources and not found.warnings:
        raise NotFound(f"there is no {ORGANISATION_FILE} in {home()}", hint="caloron org init")
    data = _data(found) | {"valid": not found.warnings}
    if not found.warnings:
        success("org.validate", data, f"All is understood: {', '.join(found.sources)}")
        return 0
    if not output.wants_json():
        click.echo("\n".join(printable(f"warning: {w}") for w in found.warnings), err=True)
    message = f"{len(found.warnings)} parts of the conventions are not understood"
    hint = "see data.warnings" if output.wants_json() else "see the warnings above"
    output.failure("org.validate", CaloronError.code, message, hint=hint, data=data)
    return CaloronError.exit_code


def _load(project: str | None) -> Conventions:
    if project is None:
        return load(home())
    work_dir = load_project(project).workspace if is_valid_id(project) else None
    return load(home(), _project_yaml(project), work_dir)


def _project_yaml(project: str) -> str | None:
    if is_valid_id(project):
        from caloron.cli.looking import forge_note

        main = forge_note(find_project(project))["main"]
        return _on_main(load_project(project).git_here, main)
    directory = Path(project)
    if not _is_directory(directory):
        raise NotFound(
            f"{project!r} is neither a project nor a directory", hint="caloron projects list"
        )
    file = directory / PROJECT_FILE
    try:
        return file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the conventions in {file} cannot be read: {error}", hint="make it UTF-8 text"
        ) from error


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        # No directory can have this name.
        return False


def _on_main(forge: Path, main: str) -> str | None:
    """The file as agents get it: from the forge's main, not from what is checked out."""
    from caloron.git.command import git_process

    done = git_process(forge, "show", f"{main}:{PROJECT_FILE}")
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def _data(found: Conventions) -> dict[str, Any]:
    return {
        "source": ", ".join(found.sources),
        "organisation": found.organisation,
        "is_empty": found.is_empty,
        "rendered": render(found),
        "warnings": list(found.warnings),
    }
