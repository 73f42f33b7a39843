"""`caloron projects`: the projects of this home."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from caloron.cli import output
from caloron.cli.alone import alone, refuse_held, size_of, state_files
from caloron.cli.options import dry_run_option, output_option
from caloron.cli.output import aside, printable, size, success
from caloron.cli.screen import aligned
from caloron.errors import CaloronError, PreconditionFailed
from caloron.ids import ID_WORDS
from caloron.ledger.locate import (
    ProjectPaths,
    active_project_name,
    find_project,
    home,
    project_names,
    require_id,
    unusable_project_names,
)
from caloron.ledger.projects import load_project, set_active

_SHOWN = ("repo", "backend", "framework", "work_dir")
NOT_CONFIRMED = 1


@click.group()
def projects() -> None:
    """List, switch and delete projects.

    \b
    Examples:
      caloron projects list
      caloron projects switch shop
    """


@projects.command("list")
@output_option
def list_projects() -> None:
    """List the projects; the active one has a star.

    \b
    Example:
      caloron projects list --output table
    """
    active = _active()
    rows = [_row(name, active) for name in project_names()]
    rows += [_unusable(name) for name in unusable_project_names()]
    lines = aligned([_cells(row) for row in rows], head=False)
    text = "\n".join(lines) or "No project yet. Make one: caloron init NAME"
    success("projects.list", {"active": active, "projects": rows}, text)


@projects.command()
@click.argument("name")
@dry_run_option
@output_option
def switch(name: str, dry_run: bool) -> int:
    """Let later commands act on project NAME.

    \b
    Example:
      caloron projects switch shop
    """
    found = find_project(require_id(name, "project name"), need_ledger=False)
    if dry_run:
        actions = [{"action": "switch to project", "target": found.name}]
        return output.dry_run("projects.switch", actions)
    set_active(found.name)
    success("projects.switch", {"active": found.name}, f"Project {found.name} is active.")
    return 0


@projects.command()
@click.argument("name")
@click.option("--force", "-f", is_flag=True, help="Do not ask to type the name again.")
@dry_run_option
@output_option
def delete(name: str, force: bool, dry_run: bool) -> int:
    """Delete project NAME with its forge, its history and its logs, for good.

    Shows what goes, and asks to type the name again. Your own repository is not touched: bring
    what you want to keep to you first (`caloron take`, or `git clone` of the project's forge).

    \b
    Examples:
      caloron projects delete scratch --dry-run
      caloron projects delete scratch --force
    """
    found = find_project(require_id(name, "project name"), need_ledger=False)
    if found.path.is_symlink():
        raise PreconditionFailed(
            f"{found.path} is a link to {os.readlink(found.path)}",  # noqa: PTH115
            hint="remove the link yourself; nothing was deleted",
        )
    if lost := _not_taken(found):
        aside(lost)
    if dry_run:
        refuse_held(found)
        return output.dry_run("projects.delete", _parts(found))
    with alone(found):
        parts = _parts(found)
        if not force and not _confirmed(name, parts):
            output.failure(
                "projects.delete",
                "NOT_CONFIRMED",
                "nothing was deleted: that was not the name of the project",
                hint=f"type {name}, or use --force",
            )
            return NOT_CONFIRMED
        _delete(found)
    total = sum(part["bytes"] for part in parts)
    data = {"deleted": name, "bytes": total, "parts": parts, "active": _active()}
    success("projects.delete", data, f"Deleted project {name} ({size(total)}).")
    return 0


def _active() -> str | None:
    """The active project; None if there is none, or its name stands for nothing."""
    try:
        return find_project(active_project_name(), need_ledger=False).name
    except CaloronError:
        # The list of projects names what is wrong with each.
        return None


def _row(name: str, active: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "active": name == active}
    try:
        config = load_project(name).config
    except CaloronError as error:
        return row | dict.fromkeys(_SHOWN, "") | {"problem": str(error)}
    return row | {key: getattr(config, key) for key in _SHOWN} | {"problem": ""}


def _unusable(name: str) -> dict[str, Any]:
    problem = f"this name cannot be used: rename its folder to {ID_WORDS}"
    return {"name": name, "active": False} | dict.fromkeys(_SHOWN, "") | {"problem": problem}


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    name = f"{'*' if row['active'] else ' '} {printable(row['name'])}"
    return name, row["framework"], printable(row["problem"] or row["repo"])


def _parts(found: ProjectPaths) -> list[dict[str, Any]]:
    inside = sorted(found.path.iterdir())
    return [
        {"action": "delete", "target": str(place), "bytes": size_of(place)}
        for place in (*inside, *state_files(found.name))
    ]


def _not_taken(found: ProjectPaths) -> str:
    """Warn of merged work that is nowhere but in the project's own forge."""
    from caloron.git.checkout import Checkout
    from caloron.git.command import git

    try:
        project = load_project(found.name, need_ledger=False)
    except CaloronError:
        # Without its settings, a project can still be deleted.
        return ""
    main = git(found.forge_git, "rev-parse", "--verify", "refs/heads/main", check=False)
    if project.is_remote or not main:
        return ""
    repo = project.repository
    if repo and repo.is_dir() and Checkout(repo).contains(main):
        return ""
    where = f"the branch checked out in {repo}" if repo else "any repository of yours"
    return (
        f"what was merged in project {found.name} is not in {where};"
        f" to keep it: caloron take --project {found.name}"
    )


def _confirmed(name: str, parts: list[dict[str, Any]]) -> bool:
    for part in parts:
        click.echo(printable(f"  {size(part['bytes']):>8}  {part['target']}"), err=True)
    try:
        typed = click.prompt(
            f"Type {name} to delete all of it", default="", show_default=False, err=True
        )
    except click.Abort:
        return False
    return bool(typed == name)


def _delete(found: ProjectPaths) -> None:
    """Out of sight in one step, so that a crash leaves no half of a project."""
    from caloron.agents.workspaces import remove_workspace

    was_active = _active() == found.name
    gone = found.path.with_name(f".deleted-{found.name}-{os.getpid()}")
    remains = found.path.parent.glob(f".deleted-{found.name}-*")
    try:
        found.path.rename(gone)
        if was_active:
            (home() / "active").unlink(missing_ok=True)
        for file in state_files(found.name):
            file.unlink(missing_ok=True)
        for place in {gone, *_of_this(remains, found.name)}:
            remove_workspace(place)
    except OSError as error:
        raise PreconditionFailed(
            f"project {found.name} could not be deleted whole: {error}",
            hint=f"remove {gone} yourself, and look at {found.path}",
        ) from error


def _of_this(places: Any, name: str) -> list[Path]:
    """What an earlier try was not able to remove."""
    return [p for p in places if p.name.removeprefix(f".deleted-{name}-").isdigit()]
