"""`caloron state`: show, verify, back up and restore the state of a project."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import msgspec

from caloron.backup.archive import Archive
from caloron.backup.backup import LEFT_OUT, agent_files, back_up, target_for
from caloron.backup.restore import Restore, stage_for
from caloron.backup.verify import Issue, Report, verification
from caloron.cli import output
from caloron.cli.app import (
    Answer,
    DryRun,
    Failed,
    attributes,
    group,
    is_text,
    planned,
    sprint_option,
)
from caloron.cli.format import counted, size
from caloron.cli.project_view import disk_usage, ensure_unlocked, exclusive
from caloron.cli.render import aligned
from caloron.engine.exports import exported_files
from caloron.errors import CaloronError, NotFound, UsageError
from caloron.ledger import reading
from caloron.ledger.exports import digest
from caloron.ledger.ledger import read_state
from caloron.ledger.locate import ProjectPaths, require_id
from caloron.ledger.projects import Project, load_project
from caloron.ledger.run_history import find_sprint, sprint_numbers
from caloron.ledger.state_file import kv_path, kv_text
from caloron.store.database import applied_in
from caloron.store.lock import holder

#: A repair can reveal another issue: first a cached record is wrong, then the file made from it.
_ROUNDS = 3
_COUNTED = ("sprints", "tasks", "work_items", "actions", "observations", "inbox", "events")
_ASIDE = (".foreign-", ".corrupt-")


@group(examples=["caloron state verify", "caloron state backup /mnt/backups"])
def state() -> None:
    """Show, verify, back up and restore the state of a project."""


@state.command(project=True, examples=["caloron state show", "caloron state show --sprint 2"])
@sprint_option("Only files of this sprint.")
def show(sprint: str | None, project: str | None) -> Answer:
    """Show every file of a project with its size and the program that wrote it."""
    loaded = load_project(project)
    with reading.ledger_if_any(loaded) as connection:
        if connection is None:
            if sprint:
                raise NotFound("this project has no sprint yet", hint='caloron sprint "<goal>"')
            data = _state_data(loaded, None, "", only=False)
        else:
            connection.execute("BEGIN")
            has_sprints = reading.counts(connection, "sprints")["sprints"]
            name = find_sprint(connection, sprint or "") if sprint or has_sprints else ""
            data = _state_data(loaded, connection, name, only=bool(sprint))
    return Answer(data, lambda: _state_text(data))


def _state_data(
    project: Project, connection: sqlite3.Connection | None, sprint: str, *, only: bool
) -> dict[str, Any]:
    """The files of a project, or `only` those of one sprint, and the content of the ledger."""
    files = _exports(project, connection, sprint if only else "")
    if not only:
        agents = [_file(path, "agent folder", "agent") for path in agent_files(project.agents)]
        files = [*_stored_files(project), *files, *agents]
    ledger: dict[str, Any] = {"version": "", "counts": {}}
    content, number = None, None
    if connection is not None:
        applied = list(applied_in(connection))
        ledger["version"] = applied[-1] if applied else ""
        ledger["counts"] = reading.counts(connection, *_COUNTED)
        if sprint:
            number = sprint_numbers(connection).get(sprint)
            content = _state_file(connection, sprint)
    return {
        "project": project.name,
        "files": files,
        "ledger": ledger,
        "sprint_id": sprint or None,
        "number": number,
        "state": content,
    }


def _state_text(data: dict[str, Any]) -> list[str]:
    folders: dict[Path, list[tuple[str, ...]]] = {}
    for file in data["files"]:
        path = Path(file["path"])
        row = (f"{size(file['bytes']):>9}", file["whose"], path.name, file["what"])
        folders.setdefault(path.parent, [(str(path.parent),)]).append(row)
    lines = aligned([row for rows in folders.values() for row in rows], head=False)
    ledger, content = data["ledger"], data["state"]
    if ledger["version"]:
        counts = ", ".join(f"{number} {name}" for name, number in ledger["counts"].items())
        lines.append(f"Ledger {ledger['version']}: {counts}.")
    if content:
        statuses = (f"{t['id']} {t['status']}" for t in content["state"]["tasks"].values())
        lines.append(f"Sprint {data['sprint_id']}: {', '.join(statuses)}")
    return lines


def _stored_files(project: Project) -> list[dict[str, Any]]:
    """The files that nothing else can restore, then those that no sprint needs."""
    stored = [(project.ledger, "ledger"), (project.config_file, "settings")]
    if not project.is_remote:
        stored += [(project.forge_sqlite, "the forge: issues, pull requests, reviews")]
        stored += [(project.forge_git, "the forge: code")]
    stored += [(project.mirror, "our copy: work of agents, saved work")]
    rows = [_file(p, what, "truth" if p.exists() else "missing") for p, what in stored]
    rows += [_file(p, "edited plan", "person") for p in sorted((project.path / "edits").glob("*"))]
    spare = [(project.path / name, what) for name, what in LEFT_OUT.items()]
    return rows + [_file(path, what, "spare") for path, what in spare if path.exists()]


def _file(path: Path, what: str, whose: str) -> dict[str, Any]:
    return {"path": str(path), "bytes": disk_usage(path), "whose": whose, "what": what}


def _exports(
    project: Project, connection: sqlite3.Connection | None, sprint: str
) -> list[dict[str, Any]]:
    digests: dict[str, str] = {}
    if connection and reading.counts(connection, "kv")["kv"]:
        stored = reading.rows(connection, "keys", prefix="projection/")
        digests = {row["key"]: row["value"] for row in stored}
    sprints = [sprint] if sprint else list(sprint_numbers(connection)) if connection else []
    paths = exported_files(project, sprints).values()
    by_path = {path: _whose(path, digests) for path in paths}
    for name in digests:
        path = kv_path(name) if name in sprints else project.workspace / name
        if name == "sprints.json":
            path = project.sprints_json
        if "." in name or name in sprints:
            by_path.setdefault(path, "missing")
    beginnings = (f"{sprint}.", f"sprint-{sprint}.") if sprint else ("",)
    return [
        _file(path, "export", whose)
        for path, whose in by_path.items()
        if path.name.startswith(beginnings)
    ]


def _whose(path: Path, digests: dict[str, str]) -> str:
    if any(mark in path.name for mark in _ASIDE):
        return "aside"
    try:
        return "ours" if digest(path.read_bytes()) in " ".join(digests.values()) else "foreign"
    except OSError:
        # It was deleted since it was listed.
        return "missing"


def _state_file(connection: sqlite3.Connection, sprint: str) -> dict[str, Any]:
    """The content of the sprint's state file."""
    state = read_state(connection, sprint)
    since = reading.value(connection, "kv", key=f"since/{sprint}")
    text = kv_text(state, float(since) if since else state.sprint.settings.created_at)
    content: dict[str, Any] = msgspec.json.decode(text)
    return content


@state.command(
    project=True, dry_run=True, examples=["caloron state verify", "caloron state verify --repair"]
)
@click.option("--repair", is_flag=True, help="Write files again that differ from the ledger.")
def verify(repair: bool, dry_run: bool, project: str | None) -> Answer | DryRun:
    """Compare every file with the ledger, and verify the ledger and the forge.

    Exits with 8 if anything is wrong. A repair writes exported files and cached records again; a
    text of another program is kept aside first, and an edit that the next sprint or `resume` reads
    back stays. Facts are never changed: a damaged ledger or forge needs a backup.
    """
    selected = load_project(project)
    if not repair:
        busy = holder(selected.engine_lock) is not None
        with verification(selected, busy=busy) as run:
            report = run()
        return DryRun() if dry_run else _verified(selected, report, [])
    if dry_run:
        ensure_unlocked(selected)
        with verification(selected, busy=False) as run:
            issues = run().issues
        return DryRun(
            *(planned(issue.repair, issue.target) for issue, fix in issues.items() if fix)
        )
    with exclusive(selected), verification(selected, busy=False) as run:
        return _verified(selected, *_repair(run))


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
                output.note(f"not repaired: {issue.target}: {error}")
        report = run()
    return report, [text for i, text in messages.items() if text and i not in report.issues]


def _verified(project: ProjectPaths, report: Report, repaired: list[str]) -> Answer:
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
    if not rows:
        lines.append(f"{counted(report.checked, 'thing')} checked: all agree.")
        return Answer(data, "\n".join(lines))
    if not output.wants_json():
        output.note("\n".join(lines))
    hint = "facts cannot be repaired: restore a backup (caloron state restore FILE)"
    if any(row["repair"] for row in rows):
        hint = "caloron state verify --repair writes files and cached records again"
    message = f"project {project.name} has {counted(len(rows), 'deviation')}"
    raise Failed("PRECONDITION_FAILED", message, hint=hint, data=data)


def _line(row: dict[str, Any]) -> str:
    end = f"; repair: {row['repair']}" if row["repair"] else ""
    return f"{row['target']}: {row['found']} (expected: {row['expected']}){end}"


@state.command(
    project=True,
    dry_run=True,
    examples=["caloron state backup", "caloron state backup /mnt/backups"],
)
@click.argument("place", required=False, metavar="[FILE|DIR]")
def backup(place: str | None, dry_run: bool, project: str | None) -> Answer | DryRun:
    """Write a backup: one file with everything a project needs. A sprint may run meanwhile.

    It contains settings, ledger, the local forge, all commits, the files of the workspace and the
    folders of agents; no secrets, no output of agents. Without FILE or DIR it is written into the
    current folder. A forge on the network is not part of it.
    """
    selected = load_project(project)
    target = target_for(selected, _path(place) if place is not None else None)
    if dry_run:
        return DryRun(planned("write a backup", str(target)))
    manifest, written = back_up(selected, target, output.note), target.stat().st_size
    data = {"project": selected.name, "path": str(target), "bytes": written}
    data |= attributes(manifest, "created_at", "sprints", "left_out")
    data["parts"] = [msgspec.structs.asdict(part) for part in manifest.parts]
    lines = [f"Backup of {selected.name}: {target} ({size(written)})."]
    lines += [f"Not in it: {what}." for what in manifest.left_out]
    return Answer(data, "\n".join(lines))


@state.command(
    dry_run=True,
    examples=[
        "caloron state restore caloron-shop-20260101T120000Z.tar --dry-run",
        "caloron state restore caloron-shop-20260101T120000Z.tar --force",
    ],
)
@click.argument("file")
@click.option("--as", "name", metavar="NAME", help="Restore the project under this name.")
@click.option("--force", "-f", is_flag=True, help="Replace a project; it is kept aside.")
def restore(file: str, name: str | None, force: bool, dry_run: bool) -> Answer | DryRun:
    """Restore a project from FILE, a backup; `caloron resume` continues its sprint.

    Every byte is checked first, and nothing is changed if one is wrong. Work of agents that was in
    progress starts again.
    """
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


def _try_restore(restore: Restore) -> DryRun:
    actions = []
    if restore.place.exists():
        ensure_unlocked(ProjectPaths(restore.name, restore.place))
        actions.append(planned("keep aside", str(restore.place)))
    with TemporaryDirectory(prefix="caloron-restore-") as folder:
        restored = restore.prepare(Path(folder))
    actions.append(planned("restore project", str(restore.place)))
    return DryRun(*actions, *(planned("start again", item) for item in restored.reopened))


def _restore(restore: Restore, original: str) -> Answer:
    with stage_for(restore.name) as stage:
        restored = restore.prepare(stage)
        restore.publish(stage, restored)
    data = {"project": restored.name, "path": str(restored.path), "was": original}
    data |= attributes(restored, "sprints", "reopened", "kept", "aside")
    lines = [f"Project {restored.name} is restored: {counted(len(restored.sprints), 'sprint')}."]
    lines += [f"The replaced project is kept as {restored.kept}."] if restored.kept else []
    lines += [f"{item} starts again." for item in restored.reopened]
    lines += [f"Continue its sprint: caloron resume --project {restored.name}"]
    return Answer(data, "\n".join(lines))


def _path(text: str) -> Path:
    if not text.strip() or not is_text(text) or "\0" in text:
        raise UsageError(f"{text[:80]!r} is not a file name", hint="name a file or a folder")
    return Path(text).expanduser() if text.startswith("~/") else Path(text)
