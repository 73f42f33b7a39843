"""`caloron project` and `caloron clean`: manage projects and free their disk space."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from caloron.agents.workspace.workspaces import remove_workspace
from caloron.cli import output
from caloron.cli.app import (
    PROJECT,
    Answer,
    DryRun,
    Number,
    attributes,
    command,
    confirm,
    group,
    planned,
)
from caloron.cli.format import size
from caloron.cli.project_view import disk_usage, ensure_unlocked, exclusive, state_files
from caloron.cli.render import aligned
from caloron.domain.model.roles import CODE_ROLES
from caloron.errors import CaloronError, PreconditionFailed
from caloron.git.checkout import Checkout
from caloron.git.command import git
from caloron.ids import ID_WORDS
from caloron.ledger import locate, reading
from caloron.ledger.projects import load_project, set_active

_SHOWN = ("repo", "backend", "framework", "work_dir")
_DAY_S = 86_400.0


@group(examples=["caloron project list", "caloron project switch shop"])
def project() -> None:
    """List, switch and delete projects."""


@project.command("list", examples=["caloron project list"])
def list_projects() -> Answer:
    """List the projects; the active one has a star."""
    active = _active()
    rows = [_row(name, active) for name in locate.project_names()]
    problem = f"this name cannot be used: rename its folder to {ID_WORDS}"
    rows += [_unusable(name, problem) for name in locate.project_names(valid=False)]
    lines = aligned([_cells(row) for row in rows], head=False)
    text = "\n".join(lines) or "No project yet. Create one: caloron init NAME"
    return Answer({"active": active, "projects": rows}, text)


@project.command(dry_run=True, examples=["caloron project switch shop"])
@click.argument("name", type=PROJECT)
def switch(name: str, dry_run: bool) -> Answer | DryRun:
    """Make NAME the active project."""
    project = locate.find_project(locate.require_id(name, "project name"), need_ledger=False)
    if dry_run:
        return DryRun(planned("switch to project", project.name))
    set_active(project.name)
    return Answer({"active": project.name}, f"Project {project.name} is active.")


@project.command(
    dry_run=True,
    examples=[
        "caloron project delete scratch --dry-run",
        "caloron project delete scratch --yes",
    ],
)
@click.argument("name", type=PROJECT)
@click.option("--yes", "-y", is_flag=True, help="Do not ask to type the name again.")
def delete(name: str, yes: bool, dry_run: bool) -> Answer | DryRun:
    """Delete project NAME with its forge, its history and its logs, for good.

    Shows what is deleted, and asks to type the name again. Your own repository is not touched:
    first bring what you want to keep to you (`caloron apply`, or `git clone` of the project's
    forge).
    """
    project = locate.find_project(locate.require_id(name, "project name"), need_ledger=False)
    if project.path.is_symlink():
        raise PreconditionFailed(
            f"{project.path} is a link to {os.readlink(project.path)}",  # noqa: PTH115
            hint="remove the link yourself; nothing was deleted",
        )
    if warning := _not_taken(project):
        output.note(warning)
    if dry_run:
        ensure_unlocked(project)
        return DryRun(*_parts(project))
    with exclusive(project):
        parts = _parts(project)
        if not yes:
            output.note(
                "\n".join(f"  {size(part['bytes']):>8}  {part['target']}" for part in parts)
            )
            refusal = "nothing was deleted: that was not the name of the project"
            confirm(f"Type {name} to delete all of it", refusal, name=name)
        _delete(project)
    total = sum(part["bytes"] for part in parts)
    data = {"deleted": name, "bytes": total, "parts": parts, "active": _active()}
    return Answer(data, f"Deleted project {name} ({size(total)}).")


def _active() -> str | None:
    """The active project; None if there is none, or it does not exist."""
    try:
        return locate.find_project(locate.active_project_name(), need_ledger=False).name
    except CaloronError:
        # The list of projects names the problem of each.
        return None


def _row(name: str, active: str | None) -> dict[str, Any]:
    is_active = name == active
    try:
        config = load_project(name).config
    except CaloronError as error:
        return _unusable(name, str(error), active=is_active)
    shown = attributes(config, *_SHOWN)
    return {"name": name, "active": is_active, **shown, "problem": ""}


def _unusable(name: str, problem: str, *, active: bool = False) -> dict[str, Any]:
    unknown = dict.fromkeys(_SHOWN, "")
    return {"name": name, "active": active, **unknown, "problem": problem}


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    name = f"{'*' if row['active'] else ' '} {row['name']}"
    return name, row["framework"], row["problem"] or row["repo"]


def _parts(project: locate.ProjectPaths) -> list[dict[str, Any]]:
    paths = (*sorted(project.path.iterdir()), *state_files(project.name))
    return [planned("delete", str(path), bytes=disk_usage(path)) for path in paths]


def _not_taken(paths: locate.ProjectPaths) -> str:
    """Warn of merged work that exists only in the project's own forge."""
    try:
        project = load_project(paths.name, need_ledger=False)
    except CaloronError:
        # Without its settings, a project can still be deleted.
        return ""
    main = git(paths.forge_git, "rev-parse", "--verify", "refs/heads/main", check=False)
    if project.is_remote or not main:
        return ""
    repo = project.repository
    if repo and repo.is_dir() and Checkout(repo).contains(paths.forge_git, main):
        return ""
    where = f"the branch checked out in {repo}" if repo else "any repository of yours"
    return (
        f"the merged work of project {paths.name} is not in {where};"
        f" to keep it: caloron apply --project {paths.name}"
    )


def _delete(project: locate.ProjectPaths) -> None:
    """Rename the folder first, so that a crash leaves no half of a project."""
    was_active = _active() == project.name
    renamed = project.path.with_name(f".deleted-{project.name}-{os.getpid()}")
    leftovers = project.path.parent.glob(f".deleted-{project.name}-*")
    try:
        project.path.rename(renamed)
        if was_active:
            (locate.home() / "active").unlink(missing_ok=True)
        for file in state_files(project.name):
            file.unlink(missing_ok=True)
        for folder in {renamed, *leftovers}:
            # The name of another project may begin like this one.
            if folder.name.removeprefix(f".deleted-{project.name}-").isdigit():
                remove_workspace(folder)
    except OSError as error:
        raise PreconditionFailed(
            f"project {project.name} could not be deleted whole: {error}",
            hint=f"remove {renamed} yourself, and check {project.path}",
        ) from error


@command(
    project=True,
    dry_run=True,
    examples=["caloron clean --dry-run", "caloron clean --older-than 7 --yes"],
)
@click.option(
    "--older-than",
    "days",
    type=Number(0, 36_500),
    default=30,
    show_default=True,
    metavar="DAYS",
    help="Logs, merged branches, setup caches and saved work of this age or older.",
)
@click.option("--salvage", is_flag=True, help="Also the saved work of interrupted attempts.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def clean(
    days: int, salvage: bool, yes: bool, dry_run: bool, project: str | None
) -> Answer | DryRun:
    """Remove old logs, merged branches, caches and leftover workspaces, with their sizes.

    Only of sprints whose tasks are all done or cancelled, and that do not wait for you. A workspace
    with work that is saved nowhere else stays, and so do the history and everything on the forge
    that is not merged.
    """
    paths = locate.find_project(project)
    if dry_run:
        ensure_unlocked(paths)
        items, _ = _cleanup_plan(paths, days, salvage)
        return DryRun(*items)
    with exclusive(paths):
        items, kept = _cleanup_plan(paths, days, salvage)
        total = sum(item["bytes"] for item in items)
        lines = [f"  {size(i['bytes']):>8}  {i['kind']:<9}  {i['target']}" for i in items]
        lines += [f"  kept: {entry['target']}: {entry['reason']}" for entry in kept]
        if items and not yes:
            output.note("\n".join(lines))
            confirm(f"Remove these {len(items)} ({size(total)})?", "nothing was removed")
        _remove(paths, items)
    end = f"Removed {len(items)}, {size(total)}." if items else "Nothing to remove."
    data = {"project": paths.name, "removed": items, "bytes": total, "kept": kept}
    return Answer(data, "\n".join((*lines, end)))


def _cleanup_plan(
    paths: locate.ProjectPaths, days: int, salvage: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What can be removed, and the workspaces that have to stay."""
    before = time.time() - days * _DAY_S
    with reading.ledger_if_any(paths) as connection:
        rows = reading.rows(connection, "finished") if connection else []
        finished = {row["id"]: row["ended_at"] for row in rows}
    old = [sprint for sprint, ended in finished.items() if ended <= before]
    saved = _refs(paths, "refs/salvage", "refs/caloron/work")
    items: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    for sprint in finished:
        workspaces = sorted((paths.runs / sprint).glob("*/*/*/workspace"))
        unsaved = [w for w in workspaces if not _is_saved(paths, w, saved)]
        kept += [{"target": str(w), "reason": "its work is saved nowhere else"} for w in unsaved]
        if sprint in old and not unsaved:
            items += _items("logs", paths.runs / sprint)
            continue
        for workspace in set(workspaces) - set(unsaved):
            items += _items("workspace", workspace) + _items("home", workspace.parent / "home")
    # The pool belongs to a running engine; none runs while we have the lock.
    items += _items("pool", paths.path / "pool") + _items("trash", paths.path / "trash")
    for kind, folder in (("seed", paths.path / "seeds"), ("defect", locate.home() / "logs")):
        for path in _old_in(folder, before):
            items += _items(kind, path)
    items += [_item("branch", name, 0) for name in _merged_branches(paths, old)]
    if salvage:
        of_old = tuple(f"refs/salvage/{sprint}/" for sprint in old)
        items += [_item("salvage", ref, 0) for ref in saved if ref.startswith(of_old)]
    return sorted(items, key=lambda item: (item["kind"], item["target"])), kept


def _item(kind: str, target: str, bytes: int) -> dict[str, Any]:
    action = "forget" if kind == "salvage" else "delete"
    return {"action": action, "kind": kind, "target": target, "bytes": bytes}


def _items(kind: str, path: Path) -> list[dict[str, Any]]:
    return [_item(kind, str(path), disk_usage(path))] if path.exists() else []


def _is_saved(paths: locate.ProjectPaths, workspace: Path, refs: list[str]) -> bool:
    """True if our own repository has the agent's work; git never runs in a workspace."""
    run = workspace.parent.relative_to(paths.runs)
    role = run.parent.name.rpartition("-")[2]
    return role not in CODE_ROLES or any(ref.endswith(f"/{run}") for ref in refs)


def _refs(paths: locate.ProjectPaths, *prefixes: str) -> list[str]:
    if not paths.mirror.exists():
        return []
    return git(paths.mirror, "for-each-ref", "--format=%(refname)", *prefixes).splitlines()


def _merged_branches(paths: locate.ProjectPaths, sprints: list[str]) -> list[str]:
    """Agents' branches that main contains; an unmerged one is the only copy of its work."""
    if not sprints or not paths.forge_git.exists():
        return []
    form = "--format=%(refname:lstrip=2)"
    merged = ("--merged=refs/heads/main", "refs/heads/agent")
    names = git(paths.forge_git, "for-each-ref", form, *merged, check=False).splitlines()
    return [name for name in names if name.rpartition("/")[2] in sprints]


def _old_in(folder: Path, before: float) -> Iterator[Path]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        # The lock of a cache entry is as old as the entry, and needed as long as it exists.
        if path.lstat().st_mtime <= before and path.suffix != ".lock":
            yield path


def _remove(paths: locate.ProjectPaths, items: list[dict[str, Any]]) -> None:
    for kind, target in ((item["kind"], item["target"]) for item in items):
        if kind == "salvage":
            git(paths.mirror, "update-ref", "-d", target)
            continue
        if kind == "branch":
            # `-d` checks again: a person may have pushed to it meanwhile.
            git(paths.forge_git, "branch", "--quiet", "-d", "--", target)
            continue
        try:
            remove_workspace(Path(target))
        except OSError as error:
            raise PreconditionFailed(
                f"{target} cannot be removed: {error}",
                hint="the items before it are removed; fix that and run it again",
            ) from error
