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
from caloron.store.database import load_statements

if TYPE_CHECKING:
    from caloron.ledger.ledger import Ledger
    from caloron.ledger.projects import Project

HISTORY = "sprints.json"
VERSIONS = "agent_versions.json"
_LARGEST_FILE = 64 << 20
#: `is_imported` is true once the files were imported, whatever they contained.
_SQL = load_statements(Path(__file__).parent / "sql" / "legacy.sql")
#: The record of a sprint with its number.
_Numbered = tuple[int, dict[str, Any]]


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
    records: list[_Numbered]
    if connection is not None and connection.execute(_SQL["is_imported"]).fetchone():
        rows = connection.execute(_SQL["imported"], {"file": HISTORY}).fetchall()
        newest = rows if limit < 0 else rows[:limit]
        records, total = [(row["position"], json.loads(row["text"])) for row in newest], len(rows)
    else:
        try:
            own_sprints = connection.execute(_SQL["goals"]) if connection else ()
            records = _numbered_records(paths, own_sprints)[::-1]
        except (OSError, ValueError) as error:
            return LegacySprints([], 0, f"{paths.sprints_json} cannot be read: {error}")
        records, total = records if limit < 0 else records[:limit], len(records)
    return LegacySprints([LegacySprint(n, f"{paths.name}-{n}", r) for n, r in records], total)


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
    agents: dict[str, Any] = {}
    if connection is not None:
        rows = connection.execute(_SQL["imported"], {"file": VERSIONS}).fetchall()
        agents = {row["key"]: json.loads(row["text"]) for row in rows[::-1]}
    elif workspace is not None:
        agents = _agents_in_file(workspace / VERSIONS)
    return {
        agent: [version for version in versions if isinstance(version, dict)]
        for agent, versions in agents.items()
        if isinstance(versions, list)
    }


def _numbered_records(paths: ProjectPaths, own_sprints: Iterable[sqlite3.Row]) -> list[_Numbered]:
    """Return the records in `sprints.json` that are not ours, in the order of the file."""
    try:
        text = _read(paths.sprints_json)
    except FileNotFoundError:
        return []
    from caloron.domain.compat.legacy_sprints import number_records, parse_history, text_of

    records = parse_history(text)
    return number_records(records, {row["number"]: text_of(row["goal"]) for row in own_sprints})


def _agents_in_file(path: Path) -> dict[str, Any]:
    try:
        text = _read(path)
        from caloron.domain.compat.legacy_sprints import parse_json

        agents = parse_json(text)
    except (OSError, ValueError):
        # The next sprint keeps the file aside, with a message.
        return {}
    return agents if isinstance(agents, dict) else {}


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        text = file.read(_LARGEST_FILE + 1)
    if len(text) > _LARGEST_FILE:
        raise ValueError(f"it has more than {_LARGEST_FILE} bytes")
    return text


def import_home(ledger: Ledger, project: Project) -> list[str]:
    """Import the sprints and agents of the older program, once; return messages.

    The files are not changed here: the next export keeps their texts aside.
    """
    if ledger.db.row(_SQL["is_imported"]):
        return []
    from caloron.ledger.exports import digest, keep_aside
    from caloron.ledger.ledger import SQL, remember_export
    from caloron.store import queue

    messages: list[str] = []
    sprints: list[_Numbered] = []
    history = project.sprints_json
    try:
        sprints = _numbered_records(project, ledger.db.rows(_SQL["goals"]))
    except ValueError as error:
        kept = keep_aside(ledger, history, b"", readable=False)
        messages.append(f"{history} is corrupt ({error}); it is kept as {kept}")
    except OSError as error:
        messages.append(f"{history} cannot be read: {error.strerror}")
    agents = _agents_in_file(project.workspace / VERSIONS)
    entries = [(HISTORY, f"{project.name}-{number}", number, record) for number, record in sprints]
    entries += [(VERSIONS, agent, place, agents[agent]) for place, agent in enumerate(agents)]
    with ledger.db.transaction("import_home") as connection:
        for file, key, position, content in entries:
            row = {"file": file, "key": key, "position": position, "whose": "theirs", "version": 0}
            row["text"] = json.dumps(content, ensure_ascii=False)
            connection.execute(SQL["put_entry"], row)
        connection.execute(_SQL["set_imported"])
        if empty := _empty_history(history):
            # Nothing to keep aside: the file is treated as one of ours.
            remember_export(connection, HISTORY, digest(empty))
        if entries:
            payload = {"sprints": len(sprints), "agents": len(agents)}
            queue.append_event(connection, "state_imported", payload)
            counts = f"{len(sprints)} sprints and {len(agents)} agents"
            messages.append(f"imported from an older version of Caloron: {counts}")
    return messages


def _empty_history(path: Path) -> bytes:
    """Return the text of a `sprints.json` without sprints; the older program begins with one."""
    try:
        text = _read(path)
        return text if json.loads(text) == {"sprints": []} else b""
    except (OSError, ValueError, RecursionError):
        # The import reports a file that cannot be read.
        return b""
