"""Sprints and agents of `caloron-alpibru`, the older program.

`import_home` imports them into the ledger once, when a project is opened for work. Until then the
commands that only read find them in the files of the older program and write nothing; those
commands need the standard library only.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from caloron.ledger.locate import ProjectPaths

if TYPE_CHECKING:
    from caloron.ledger.ledger import Ledger
    from caloron.ledger.projects import Project

HISTORY = "sprints.json"
VERSIONS = "agent_versions.json"
#: The key in `kv` that is set once the files were imported, whatever they contained.
_IMPORTED = "history_taken_over"
_LARGEST_FILE = 64 << 20
_ROWS = "SELECT key, position, text FROM entries WHERE file = ? AND whose = 'theirs'"


class LegacySprint(NamedTuple):
    """A sprint of the older program, with its record in the shape of `sprints.json`."""

    number: int
    id: str
    record: dict[str, object]


class LegacySprints(NamedTuple):
    """The sprints of the older program, newest first."""

    sprints: list[LegacySprint]
    total: int
    #: Why its file cannot be read.
    problem: str = ""


def legacy_sprints(
    paths: ProjectPaths, connection: sqlite3.Connection | None, limit: int = -1
) -> LegacySprints:
    """Return the last `limit` sprints of the older program; all of them for -1."""
    if connection is not None and _is_imported(connection):
        rows = connection.execute(f"{_ROWS} ORDER BY position DESC", (HISTORY,)).fetchall()
        newest = rows if limit < 0 else rows[:limit]
        sprints = [_sprint(paths, row["position"], json.loads(row["text"])) for row in newest]
        return LegacySprints(sprints, len(rows))
    return _in_file(paths, connection, limit)


def find_legacy_sprint(
    paths: ProjectPaths, connection: sqlite3.Connection | None, named: str
) -> LegacySprint | None:
    """Return a sprint of the older program by its id or number."""
    number = named.removeprefix("#").removeprefix(f"{paths.name}-")
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        return None
    sprints = legacy_sprints(paths, connection).sprints
    return next((sprint for sprint in sprints if sprint.number == int(number)), None)


def legacy_agents(
    connection: sqlite3.Connection | None, workspace: Path | None
) -> dict[str, list[dict[str, Any]]]:
    """Return the versions of the older program's agents, oldest first.

    They are in the ledger or, before the first sprint, in the workspace.
    """
    agents: object = {}
    if connection is not None:
        if _has_entries(connection):
            rows = connection.execute(_ROWS, (VERSIONS,)).fetchall()
            agents = {row["key"]: json.loads(row["text"]) for row in rows}
    elif workspace is not None:
        agents = _agents_in_file(workspace / VERSIONS)
    return {
        agent: [version for version in versions if isinstance(version, dict)]
        for agent, versions in (agents.items() if isinstance(agents, dict) else ())
        if isinstance(versions, list)
    }


def _is_imported(connection: sqlite3.Connection) -> bool:
    query = "SELECT 1 FROM kv WHERE key = ?"
    return _has_entries(connection) and bool(connection.execute(query, (_IMPORTED,)).fetchone())


def _has_entries(connection: sqlite3.Connection) -> bool:
    query = "SELECT 1 FROM sqlite_master WHERE name = 'entries'"
    return connection.execute(query).fetchone() is not None


def _in_file(
    paths: ProjectPaths, connection: sqlite3.Connection | None, limit: int
) -> LegacySprints:
    try:
        query = "SELECT number, goal FROM sprints"
        records = _numbered_records(paths, connection.execute(query) if connection else ())
    except (OSError, ValueError) as error:
        return LegacySprints([], 0, f"{paths.sprints_json} cannot be read: {error}")
    newest = records[::-1] if limit < 0 else records[::-1][:limit]
    return LegacySprints([_sprint(paths, *record) for record in newest], len(records))


def _numbered_records(
    paths: ProjectPaths, own_sprints: Iterable[sqlite3.Row]
) -> list[tuple[int, dict[str, Any]]]:
    """Return the records in `sprints.json` that are not ours, each with its number."""
    from caloron.domain.compat.legacy_sprints import number_records, parse_history, text_of

    try:
        records = parse_history(_read(paths.sprints_json))
    except FileNotFoundError:
        return []
    return number_records(records, {row["number"]: text_of(row["goal"]) for row in own_sprints})


def _agents_in_file(path: Path) -> object:
    from caloron.domain.compat.legacy_sprints import parse_json

    try:
        return parse_json(_read(path))
    except (OSError, ValueError):
        # The next sprint keeps the file aside, with a message.
        return {}


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        text = file.read(_LARGEST_FILE + 1)
    if len(text) > _LARGEST_FILE:
        raise ValueError(f"it has more than {_LARGEST_FILE} bytes")
    return text


def _sprint(paths: ProjectPaths, number: int, record: dict[str, object]) -> LegacySprint:
    return LegacySprint(number, f"{paths.name}-{number}", record)


def import_home(ledger: Ledger, project: Project) -> list[str]:
    """Import the sprints and agents of the older program, once; return messages.

    The files are not changed here: the next export keeps their texts aside.
    """
    if ledger.get(_IMPORTED):
        return []
    from caloron.ledger.exports import digest
    from caloron.ledger.ledger import SQL, remember_export
    from caloron.store import queue

    messages: list[str] = []
    sprints = _sprints_to_import(ledger, project, messages)
    agents = _agents_in_file(project.workspace / VERSIONS)
    entries = [
        {"file": HISTORY, "key": f"{project.name}-{number}", "position": number, "text": record}
        for number, record in sprints
    ]
    for position, (agent, versions) in enumerate(
        agents.items() if isinstance(agents, dict) else ()
    ):
        entries.append({"file": VERSIONS, "key": agent, "position": position, "text": versions})
    with ledger.db.transaction("import_home") as connection:
        for entry in entries:
            text = json.dumps(entry["text"], ensure_ascii=False)
            row = entry | {"whose": "theirs", "version": 0, "text": text}
            connection.execute(SQL["put_entry"], row)
        connection.execute(SQL["put_kv"], {"key": _IMPORTED, "value": "1"})
        if empty := _empty_history(project.sprints_json):
            # Nothing to keep aside: the file is treated as one of ours.
            remember_export(connection, HISTORY, digest(empty))
        if entries:
            payload = {"sprints": len(sprints), "agents": len(entries) - len(sprints)}
            queue.append_event(connection, "state_imported", payload)
    if entries:
        counts = f"{len(sprints)} sprints and {len(entries) - len(sprints)} agents"
        messages.append(f"imported from an older version of Caloron: {counts}")
    return messages


def _sprints_to_import(
    ledger: Ledger, project: Project, messages: list[str]
) -> list[tuple[int, dict[str, Any]]]:
    from caloron.ledger.exports import keep_aside
    from caloron.ledger.ledger import SQL

    try:
        return _numbered_records(project, ledger.db.rows(SQL["goals"]))
    except ValueError as error:
        kept = keep_aside(ledger, project.sprints_json, b"", readable=False)
        messages.append(f"{project.sprints_json} is corrupt ({error}); it is kept as {kept}")
    except OSError as error:
        messages.append(f"{project.sprints_json} cannot be read: {error.strerror}")
    return []


def _empty_history(path: Path) -> bytes:
    """Return the text of a `sprints.json` without sprints; the older program begins with one."""
    try:
        text = _read(path)
        return text if json.loads(text) == {"sprints": []} else b""
    except (OSError, ValueError, RecursionError):
        # The import reports a file that cannot be read.
        return b""
