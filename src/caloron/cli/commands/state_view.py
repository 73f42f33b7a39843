"""The content of `caloron state show`: every file of a project with its size and author."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from caloron.backup.backup import LEFT_OUT, agent_files
from caloron.cli.format import printable, size
from caloron.cli.project_view import disk_usage
from caloron.cli.render import aligned, fitted
from caloron.engine.exports import exported_files
from caloron.errors import NotFound
from caloron.ledger.exports import digest
from caloron.ledger.ledger import SQL, read_state
from caloron.ledger.projects import Project
from caloron.ledger.reading import open_ledger
from caloron.ledger.run_history import find_sprint, sprint_numbers
from caloron.ledger.state_file import kv_path, kv_text
from caloron.store.database import applied_in

_COUNTED = ("sprints", "tasks", "work_items", "actions", "observations", "inbox", "events")
_ASIDE = (".foreign-", ".corrupt-")


def show_state(project: Project, sprint: str) -> tuple[dict[str, Any], str]:
    """Return the files of a project, or of one sprint, as data and as text."""
    if not project.ledger.exists():
        if sprint:
            raise NotFound("this project has no sprint yet", hint='caloron sprint "<goal>"')
        return _answer(project, None, "", only=False)
    with closing(open_ledger(project.ledger)) as connection:
        connection.execute("BEGIN")
        has_sprints = bool(_count(connection, "sprints"))
        id = find_sprint(connection, sprint) if sprint or has_sprints else ""
        return _answer(project, connection, id, only=bool(sprint))


def _answer(
    project: Project, connection: sqlite3.Connection | None, sprint: str, *, only: bool
) -> tuple[dict[str, Any], str]:
    files = [] if only else _stored_files(project)
    files += _exports(project, connection, sprint if only else "")
    files += [] if only else [_row(p, "agent folder", "agent") for p in agent_files(project.agents)]
    ledger = _ledger(connection)
    data: dict[str, Any] = {"project": project.name, "files": files, "ledger": ledger}
    number = sprint_numbers(connection).get(sprint) if connection and sprint else None
    data |= {"sprint_id": sprint or None, "number": number, "state": _state(connection, sprint)}
    lines = [printable(line) for line in aligned(_by_folder(files), head=False)]
    if ledger["version"]:
        counts = ", ".join(f"{number} {name}" for name, number in ledger["counts"].items())
        lines.append(f"Ledger {ledger['version']}: {counts}.")
    if data["state"]:
        tasks = data["state"]["state"]["tasks"].values()
        lines.append(f"Sprint {sprint}: " + ", ".join(f"{t['id']} {t['status']}" for t in tasks))
    return data, fitted(printable("\n".join(lines)))


def _by_folder(files: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a line for each folder, followed by its files."""
    folders: dict[Path, list[tuple[str, ...]]] = {}
    for file in files:
        path = Path(file["path"])
        row = (f"{size(file['bytes']):>9}", file["whose"], path.name, file["what"])
        folders.setdefault(path.parent, [(str(path.parent),)]).append(row)
    return [row for rows in folders.values() for row in rows]


def _stored_files(project: Project) -> list[dict[str, Any]]:
    """Return the files that nothing else can restore, then those that no sprint needs."""
    stored = [(project.ledger, "ledger"), (project.config_file, "settings")]
    if not project.is_remote:
        stored += [(project.forge_sqlite, "the forge: issues, pull requests, reviews")]
        stored += [(project.forge_git, "the forge: code")]
    stored += [(project.mirror, "our copy: work of agents, saved work")]
    rows = [_row(p, what, "truth" if p.exists() else "missing") for p, what in stored]
    rows += [_row(p, "edited plan", "person") for p in sorted((project.path / "edits").glob("*"))]
    spare = [(project.path / name, what) for name, what in LEFT_OUT.items()]
    return rows + [_row(path, what, "spare") for path, what in spare if path.exists()]


def _row(path: Path, what: str, whose: str) -> dict[str, Any]:
    return {"path": str(path), "bytes": disk_usage(path), "whose": whose, "what": what}


def _exports(
    project: Project, connection: sqlite3.Connection | None, sprint: str
) -> list[dict[str, Any]]:
    digests = _stored_digests(connection)
    sprints = [sprint] if sprint else list(sprint_numbers(connection)) if connection else []
    paths = exported_files(project, sprints).values()
    by_path = {path: _whose(path, digests) for path in paths}
    for name in digests:
        path = kv_path(name) if name in sprints else project.workspace / name
        if name == "sprints.json":
            path = project.sprints_json
        if "." in name or name in sprints:
            by_path.setdefault(path, "missing")
    return [
        _row(path, "export", whose)
        for path, whose in by_path.items()
        if not sprint or _is_about(path, sprint)
    ]


def _is_about(path: Path, sprint: str) -> bool:
    return path.name.startswith((f"{sprint}.", f"sprint-{sprint}."))


def _whose(path: Path, digests: dict[str, str]) -> str:
    if any(mark in path.name for mark in _ASIDE):
        return "aside"
    try:
        return "ours" if digest(path.read_bytes()) in " ".join(digests.values()) else "foreign"
    except OSError:
        # It was deleted since it was listed.
        return "missing"


def _stored_digests(connection: sqlite3.Connection | None) -> dict[str, str]:
    if connection is None or not _has(connection, "kv"):
        return {}
    query = "SELECT key, value FROM kv WHERE key LIKE 'projection/%' ORDER BY key"
    rows = connection.execute(query).fetchall()
    return {row["key"].removeprefix("projection/"): row["value"] for row in rows}


def _ledger(connection: sqlite3.Connection | None) -> dict[str, Any]:
    if connection is None:
        return {"version": "", "counts": {}}
    applied = list(applied_in(connection))
    counts = {name: _count(connection, name) for name in _COUNTED}
    return {"version": applied[-1] if applied else "", "counts": counts}


def _has(connection: sqlite3.Connection, table: str) -> bool:
    query = "SELECT 1 FROM sqlite_master WHERE name = ?"
    return connection.execute(query, (table,)).fetchone() is not None


def _count(connection: sqlite3.Connection, table: str) -> int:
    if not _has(connection, table):
        return 0
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def _state(connection: sqlite3.Connection | None, sprint: str) -> dict[str, Any] | None:
    """Return the content of the sprint's state file."""
    if connection is None or not sprint:
        return None
    import msgspec

    state = read_state(connection, sprint)
    row = connection.execute(SQL["get_kv"], {"key": f"since/{sprint}"}).fetchone()
    since = float(row["value"]) if row else state.sprint.settings.created_at
    content: dict[str, Any] = msgspec.json.decode(kv_text(state, since))
    return content
