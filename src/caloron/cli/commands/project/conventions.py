"""`caloron conventions`: the conventions that the prompt of every agent contains."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from caloron.agents.conventions import (
    EXAMPLE,
    ORGANISATION_FILE,
    PROJECT_FILE,
    Conventions,
    load,
    render,
)
from caloron.cli import output
from caloron.cli.app import Answer, DryRun, Failed, attributes, group, planned, project_option
from caloron.cli.project_view import known_forge
from caloron.errors import AlreadyExists, NotFound, UsageError
from caloron.git.command import git_process
from caloron.ids import is_valid_id
from caloron.ledger.locate import home
from caloron.ledger.projects import load_project
from caloron.store.files import write_atomic

_PROJECT = project_option(
    f"Include the {PROJECT_FILE} of this project's main, or of this folder.", "NAME or FOLDER"
)


@group(examples=["caloron conventions init", "caloron conventions show --project shop"])
def conventions() -> None:
    """Create, show and check the conventions for all agents."""


@conventions.command("init", dry_run=True, examples=["caloron conventions init"])
def init_organisation(dry_run: bool) -> Answer | DryRun:
    """Write an example of the organisation's conventions, for you to edit."""
    file = home() / ORGANISATION_FILE
    if file.exists():
        raise AlreadyExists(f"{file} exists already", hint="edit it")
    if dry_run:
        return DryRun(planned("write", str(file), bytes=len(EXAMPLE.encode())))
    write_atomic(file, EXAMPLE.encode())
    return Answer({"path": str(file)}, f"Wrote {file}. Edit it, then: caloron conventions validate")


@conventions.command(
    params=[_PROJECT],
    examples=["caloron conventions show", "caloron conventions show --project ~/src/shop"],
)
def show(project: str | None) -> Answer:
    """Show the conventions as agents get them."""
    conventions = _load(project)
    data = _data(conventions)
    empty = "There are no conventions. Start with: caloron conventions init"
    lines = [data["rendered"] or empty, *(f"warning: {w}" for w in conventions.warnings)]
    return Answer(data, "\n".join(lines))


@conventions.command(
    params=[_PROJECT],
    examples=[
        "caloron conventions validate",
        "caloron conventions validate --project . --output json",
    ],
)
def validate(project: str | None) -> Answer:
    """Check the conventions: exit 0 if all is valid, 1 with warnings, 2 if they are not YAML."""
    conventions = _load(project)
    if not conventions.sources and not conventions.warnings:
        raise NotFound(
            f"there is no {ORGANISATION_FILE} in {home()}", hint="caloron conventions init"
        )
    data = _data(conventions) | {"valid": not conventions.warnings}
    if not conventions.warnings:
        return Answer(data, f"All is valid: {', '.join(conventions.sources)}")
    if not output.wants_json():
        output.note("\n".join(f"warning: {warning}" for warning in conventions.warnings))
    message = f"{len(conventions.warnings)} parts of the conventions are not valid"
    hint = "see data.warnings" if output.wants_json() else "see the warnings above"
    raise Failed("GENERAL_ERROR", message, hint=hint, data=data)


def _load(project: str | None) -> Conventions:
    if project is None:
        return load(home())
    if not is_valid_id(project):
        return load(home(), _file_in(project))
    loaded = load_project(project)
    # As agents get it: from the forge's main, not from a checkout.
    file = f"{known_forge(loaded)['main']}:{PROJECT_FILE}"
    done = git_process(loaded.git_here, "show", file)
    text = done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None
    return load(home(), text, loaded.workspace)


def _file_in(directory: str) -> str | None:
    # `Path.is_dir` raises for a name that no directory can have.
    if not os.path.isdir(directory):  # noqa: PTH112
        raise NotFound(
            f"{directory!r} is neither a project nor a directory", hint="caloron project list"
        )
    file = Path(directory) / PROJECT_FILE
    try:
        return file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the conventions in {file} cannot be read: {error}", hint="make it UTF-8 text"
        ) from error


def _data(conventions: Conventions) -> dict[str, Any]:
    data = attributes(conventions, "organisation", "is_empty", "warnings")
    return data | {"source": ", ".join(conventions.sources), "rendered": render(conventions)}
