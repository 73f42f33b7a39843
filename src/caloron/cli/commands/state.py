"""`caloron state`: show, verify, back up and restore the state of a project."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from caloron.cli import output
from caloron.cli.app import dry_run_option, is_text, named_sprint, output_option, project_option
from caloron.cli.format import counted, printable, size
from caloron.cli.locks import ensure_unlocked, exclusive
from caloron.cli.output import success
from caloron.errors import CaloronError, PreconditionFailed, UsageError
from caloron.ledger.locate import ProjectPaths, require_id
from caloron.store.lock import holder

if TYPE_CHECKING:
    from caloron.backup.restore import Restore
    from caloron.backup.verify import Issue, Report

#: A repair can reveal another issue: first a cached record is wrong, then the file made from it.
_ROUNDS = 3


@click.group()
def state() -> None:
    """Show, verify, back up and restore the state of a project.

    \b
    Examples:
      caloron state verify
      caloron state backup /mnt/backups
    """


@state.command()
@click.option(
    "--sprint", callback=named_sprint, metavar="SPRINT", help="Only files of this sprint."
)
@project_option
@output_option
def show(sprint: str | None, project: str | None) -> None:
    """Show every file of a project with its size and the program that wrote it.

    \b
    Examples:
      caloron state show
      caloron state show --sprint 2 --output table
    """
    from caloron.cli.commands.state_view import show_state
    from caloron.ledger.projects import load_project

    data, text = show_state(load_project(project), sprint or "")
    success("state.show", data, text)


@state.command()
@click.option("--repair", is_flag=True, help="Write files again that differ from the ledger.")
@dry_run_option
@project_option
@output_option
def verify(repair: bool, dry_run: bool, project: str | None) -> int:
    """Compare every file with the ledger, and verify the ledger and the forge.

    Exits with 8 if anything is wrong. A repair writes exported files and cached records again; a
    text of another program is kept aside first, and an edit that the next sprint or `resume` reads
    back stays. Facts are never changed: a damaged ledger or forge needs a backup.

    \b
    Examples:
      caloron state verify
      caloron state verify --repair
    """
    from caloron.backup.verify import verification
    from caloron.ledger.projects import load_project

    selected = load_project(project)
    if not repair:
        busy = holder(selected.engine_lock) is not None
        with verification(selected, busy=busy) as run:
            report = run()
        return output.dry_run("state.verify", []) if dry_run else _answer(selected, report, [])
    if dry_run:
        ensure_unlocked(selected)
        with verification(selected, busy=False) as run:
            return output.dry_run("state.verify", _planned(run()))
    with exclusive(selected), verification(selected, busy=False) as run:
        return _answer(selected, *_repair(run))


def _repair(run: Callable[[], Report]) -> tuple[Report, list[str]]:
    """Repair each issue once; one that cannot be repaired does not stop the others."""
    messages: dict[Issue, str] = {}
    report = run()
    for _ in range(_ROUNDS):
        todo = {i: repair for i, repair in report.issues.items() if repair and i not in messages}
        if not todo:
            break
        for issue, repair in todo.items():
            try:
                messages[issue] = repair()
            except (CaloronError, OSError) as error:
                messages[issue] = ""
                output.note(printable(f"not repaired: {issue.target}: {error}"))
        report = run()
    return report, [text for i, text in messages.items() if text and i not in report.issues]


def _planned(report: Report) -> list[dict[str, Any]]:
    return [
        {"action": issue.repair, "target": issue.target}
        for issue, repair in report.issues.items()
        if repair is not None
    ]


def _answer(project: ProjectPaths, report: Report, repaired: list[str]) -> int:
    import msgspec

    rows = [msgspec.structs.asdict(issue) for issue in report.issues]
    data: dict[str, Any] = {
        "project": project.name,
        "checked": report.checked,
        "deviations": rows,
        "notes": [msgspec.structs.asdict(issue) for issue in report.notes],
        "repaired": repaired,
    }
    lines = [f"repaired: {line}" for line in repaired]
    lines += [f"note: {note['target']}: {note['found']}" for note in data["notes"]]
    lines += [_line(row) for row in rows]
    text = "\n".join(map(printable, lines))
    if not rows:
        lines.append(f"{counted(report.checked, 'thing')} checked: all agree.")
        success("state.verify", data, printable("\n".join(lines)))
        return 0
    if not output.wants_json():
        output.note(text)
    hint = (
        "caloron state verify --repair writes files and cached records again"
        if any(row["repair"] for row in rows)
        else "facts cannot be repaired: restore a backup (caloron state restore FILE)"
    )
    message = f"project {project.name} has {counted(len(rows), 'deviation')}"
    output.failure("state.verify", PreconditionFailed.code, message, hint=hint, data=data)
    return PreconditionFailed.exit_code


def _line(row: dict[str, Any]) -> str:
    end = f"; repair: {row['repair']}" if row["repair"] else ""
    return f"{row['target']}: {row['found']} (expected: {row['expected']}){end}"


@state.command()
@click.argument("place", required=False, metavar="[FILE|DIR]")
@dry_run_option
@project_option
@output_option
def backup(place: str | None, dry_run: bool, project: str | None) -> int:
    """Write a backup: one file with everything a project needs. A sprint may run meanwhile.

    It contains settings, ledger, the local forge, all commits, the files of the workspace and the
    folders of agents; no secrets, no output of agents. Without FILE or DIR it is written into the
    current folder. A forge on the network is not part of it.

    \b
    Examples:
      caloron state backup
      caloron state backup /mnt/backups
    """
    import msgspec

    from caloron.backup.backup import back_up, target_for
    from caloron.ledger.projects import load_project

    selected = load_project(project)
    target = target_for(selected, _path(place) if place is not None else None)
    if dry_run:
        return output.dry_run("state.backup", [{"action": "write a backup", "target": str(target)}])
    manifest, written = back_up(selected, target, output.note), target.stat().st_size
    data = {
        "project": selected.name,
        "path": str(target),
        "bytes": written,
        "created_at": manifest.created_at,
        "sprints": manifest.sprints,
        "parts": [msgspec.structs.asdict(part) for part in manifest.parts],
        "left_out": manifest.left_out,
    }
    lines = [f"Backup of {selected.name}: {target} ({size(written)})."]
    lines += [f"Not in it: {what}." for what in manifest.left_out]
    success("state.backup", data, printable("\n".join(lines)))
    return 0


@state.command()
@click.argument("file")
@click.option("--as", "name", metavar="NAME", help="Restore the project under this name.")
@click.option("--force", "-f", is_flag=True, help="Replace a project; it is kept aside.")
@dry_run_option
@output_option
def restore(file: str, name: str | None, force: bool, dry_run: bool) -> int:
    """Restore a project from FILE, a backup; `caloron resume` continues its sprint.

    Every byte is checked first, and nothing is changed if one is wrong. Work of agents that was in
    progress starts again.

    \b
    Examples:
      caloron state restore caloron-shop-20260101T120000Z.tar --dry-run
      caloron state restore caloron-shop-20260101T120000Z.tar --force
    """
    from caloron.backup.archive import Archive
    from caloron.backup.restore import Restore

    if name is not None:
        require_id(name, "project name")
    with closing(Archive(_path(file))) as archive:
        original = archive.manifest.project
        restore = Restore(archive, require_id(name or original, "project name"))
        restore.refuse_conflicts(force=force)
        if dry_run:
            return _try_restore(restore)
        replaced = ProjectPaths(restore.name, restore.place)
        with exclusive(replaced) if restore.place.exists() else nullcontext():
            return _restore(restore, original)


def _try_restore(restore: Restore) -> int:
    from tempfile import TemporaryDirectory

    actions = []
    if restore.place.exists():
        ensure_unlocked(ProjectPaths(restore.name, restore.place))
        actions += [{"action": "keep aside", "target": str(restore.place)}]
    with TemporaryDirectory(prefix="caloron-restore-") as folder:
        restored = restore.prepare(Path(folder))
    actions += [{"action": "restore project", "target": str(restore.place)}]
    actions += [{"action": "start again", "target": item} for item in restored.reopened]
    return output.dry_run("state.restore", actions)


def _restore(restore: Restore, original: str) -> int:
    from caloron.backup.restore import stage_for

    with stage_for(restore.name) as stage:
        restored = restore.prepare(stage)
        restore.publish(stage, restored)
    data = {
        "project": restored.name,
        "path": str(restored.path),
        "was": original,
        "sprints": restored.sprints,
        "reopened": restored.reopened,
        "kept": restored.kept,
        "aside": restored.aside,
    }
    lines = [f"Project {restored.name} is restored: {counted(len(restored.sprints), 'sprint')}."]
    lines += [f"The replaced project is kept as {restored.kept}."] if restored.kept else []
    lines += [f"{item} starts again." for item in restored.reopened]
    lines += [f"Continue its sprint: caloron resume --project {restored.name}"]
    success("state.restore", data, printable("\n".join(lines)))
    return 0


def _path(text: str) -> Path:
    if not text.strip() or not is_text(text) or "\0" in text:
        raise UsageError(f"{text[:80]!r} is not a file name", hint="name a file or a folder")
    return Path(text).expanduser() if text.startswith("~/") else Path(text)
