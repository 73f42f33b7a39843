"""What `caloron state show` says: each thing that is kept, where, how large, whose."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from caloron.cli.alone import size_of
from caloron.cli.output import printable, size
from caloron.cli.screen import aligned, fitted
from caloron.engine.state.files import LEFT_OUT, kept_files
from caloron.engine.state.homes import files_in, homes_in
from caloron.errors import NotFound
from caloron.ledger.figures import find_sprint, sprint_numbers
from caloron.ledger.identity import open_ledger
from caloron.ledger.ledger import SQL, read_state
from caloron.ledger.projected import digest
from caloron.ledger.projections import kv_path, kv_text
from caloron.ledger.projects import Project
from caloron.store.health import applied_in

_COUNTED = ("sprints", "tasks", "work_items", "actions", "observations", "inbox", "events")
#: Where what is kept under a file's name is remembered, if not under that name itself.
_REMEMBERED = {"workspace/learnings.json": "learnings"}
_ASIDE = (".foreign-", ".corrupt-")


def look_around(project: Project, sprint: str) -> tuple[dict[str, Any], str]:
    """Everything that is kept, as data and in words; nothing is changed."""
    if not project.ledger.exists():
        if sprint:
            raise NotFound("this project has no sprint yet", hint='caloron sprint "<goal>"')
        return _told(project, None, "")
    with closing(open_ledger(project.ledger)) as connection:
        connection.execute("BEGIN")
        has_sprints = bool(_count(connection, "sprints"))
        named = find_sprint(connection, sprint) if sprint or has_sprints else ""
        return _told(project, connection, named, only=bool(sprint))


def _told(
    project: Project, connection: sqlite3.Connection | None, sprint: str, *, only: bool = False
) -> tuple[dict[str, Any], str]:
    files = [] if only else _truths(project)
    files += _projections(project, connection, sprint if only else "")
    files += [] if only else _homes(project)
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
    """A line for each folder, and below it the files in it."""
    folders: dict[Path, list[tuple[str, ...]]] = {}
    for file in files:
        path = Path(file["path"])
        row = (f"{size(file['bytes']):>9}", file["whose"], path.name, file["what"])
        folders.setdefault(path.parent, [(str(path.parent),)]).append(row)
    return [row for rows in folders.values() for row in rows]


def _truths(project: Project) -> list[dict[str, Any]]:
    """What nothing else is made of again."""
    places = [(project.ledger, "the truth"), (project.config_file, "settings")]
    if not project.is_remote:
        places += [(project.forge_sqlite, "the forge: issues, pull requests, reviews")]
        places += [(project.forge_git, "the forge: code")]
    places += [(project.mirror, "our copy: work of agents, saved work")]
    kept = [(place, what, "truth") for place, what in places]
    kept += [(project.path / name, what, "spare") for name, what in LEFT_OUT.items()]
    return [
        _row(place, what, whose if place.exists() else "missing")
        for place, what, whose in kept
        if place.exists() or whose == "truth"
    ]


def _homes(project: Project) -> list[dict[str, Any]]:
    """Every file in the homes of the agents; what is theirs follows the ledger."""
    return [
        _row(file.path, f"home of {file.agent}", file.whose)
        for home in homes_in(project.agents)
        for file in files_in(home)
    ]


def _row(place: Path, what: str, whose: str) -> dict[str, Any]:
    return {"path": str(place), "bytes": size_of(place), "whose": whose, "what": what}


def _projections(
    project: Project, connection: sqlite3.Connection | None, sprint: str
) -> list[dict[str, Any]]:
    remembered = _remembered(connection)
    rows = connection.execute("SELECT id FROM sprints ORDER BY number") if connection else ()
    sprints = [sprint] if sprint else [row["id"] for row in rows]
    found: dict[Path, dict[str, Any]] = {}
    for name, path in kept_files(project, sprints):
        if name.startswith(("config.yml", "agents/")) or (sprint and not _is_of(sprint, name)):
            continue
        own = _own_name(name)
        found[path] = _row(path, "projection", _whose(path, remembered.get(own)))
    for name in remembered:
        place = _place(project, name, sprints)
        if place is not None and place not in found and (not sprint or _is_of(sprint, name)):
            found[place] = _row(place, "projection", "missing")
    return list(found.values())


def _is_of(sprint: str, name: str) -> bool:
    """Whether a file tells of this sprint alone."""
    own = Path(name).name
    return own == sprint or own.startswith((f"{sprint}.", f"sprint-{sprint}."))


def _own_name(name: str) -> str:
    """The name under which the texts of a file are remembered."""
    if name.startswith("kv/"):
        return name.removeprefix("kv/").partition(".json")[0]
    return _REMEMBERED.get(name, name.removeprefix("workspace/"))


def _place(project: Project, name: str, sprints: list[str]) -> Path | None:
    if name == "sprints.json":
        return project.sprints_json
    if name in _REMEMBERED.values():
        return project.workspace / f"{name}.json"
    if "." in name:
        return project.workspace / name
    return kv_path(name) if name in sprints else None


def _whose(path: Path, digests: list[str] | None) -> str:
    if any(mark in path.name for mark in _ASIDE):
        return "aside"
    if path.parent.name == "edits":
        return "person"
    try:
        return "ours" if digest(path.read_bytes()) in (digests or ()) else "foreign"
    except OSError:
        # It was removed since it was listed.
        return "missing"


def _remembered(connection: sqlite3.Connection | None) -> dict[str, list[str]]:
    if connection is None or not _has(connection, "kv"):
        return {}
    query = "SELECT key, value FROM kv WHERE key LIKE 'projection/%' ORDER BY key"
    rows = connection.execute(query).fetchall()
    return {row["key"].removeprefix("projection/"): row["value"].split() for row in rows}


def _ledger(connection: sqlite3.Connection | None) -> dict[str, Any]:
    if connection is None:
        return {"version": "", "counts": {}}
    applied = applied_in(connection)
    counts = {name: _count(connection, name) for name in _COUNTED}
    return {"version": applied[-1][0] if applied else "", "counts": counts}


def _has(connection: sqlite3.Connection, table: str) -> bool:
    query = "SELECT 1 FROM sqlite_master WHERE name = ?"
    return connection.execute(query, (table,)).fetchone() is not None


def _count(connection: sqlite3.Connection, table: str) -> int:
    if not _has(connection, table):
        return 0
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def _state(connection: sqlite3.Connection | None, sprint: str) -> dict[str, Any] | None:
    """The sprint as its file tells it."""
    if connection is None or not sprint:
        return None
    import msgspec

    state = read_state(connection, sprint)
    row = connection.execute(SQL["get_kv"], {"key": f"since/{sprint}"}).fetchone()
    since = float(row["value"]) if row else state.sprint.created_at
    told: dict[str, Any] = msgspec.json.decode(kv_text(state, since))
    return told
