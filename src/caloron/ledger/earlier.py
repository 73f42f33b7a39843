"""Sprints of an older Caloron, for those who only look: nothing is written.

Once a sprint was begun here they are in the ledger; until then they stand in `sprints.json` as the
older Caloron left it.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

from caloron.ledger.locate import ProjectPaths

HISTORY = "sprints.json"
VERSIONS = "agent_versions.json"
#: Set once the file was looked at, whatever was found in it.
TAKEN_OVER = "history_taken_over"
_LARGEST_FILE = 64 << 20
_ROWS = "SELECT position, text FROM entries WHERE file = ? AND whose = 'theirs'"


class EarlierSprint(NamedTuple):
    """A sprint that an older Caloron recorded, in the shape of its `sprints.json`."""

    number: int
    id: str
    record: dict[str, object]


class Earlier(NamedTuple):
    """What there is of an older Caloron's sprints, newest first."""

    sprints: list[EarlierSprint]
    total: int
    #: Why its file cannot be read.
    problem: str = ""


def earlier_sprints(
    paths: ProjectPaths, connection: sqlite3.Connection | None, limit: int = -1
) -> Earlier:
    """The last so many sprints that were recorded before this Caloron, or all of them."""
    if connection is not None and _taken_over(connection):
        newest = f"{_ROWS} ORDER BY position DESC LIMIT ?"
        rows = connection.execute(newest, (HISTORY, limit)).fetchall()
        total = connection.execute(
            "SELECT count(*) FROM entries WHERE file = ? AND whose = 'theirs'", (HISTORY,)
        ).fetchone()[0]
        found = [_sprint(paths, row["position"], json.loads(row["text"])) for row in rows]
        return Earlier(found, total)
    return _in_the_file(paths, connection, limit)


def _taken_over(connection: sqlite3.Connection) -> bool:
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'entries'").fetchone()
    query = "SELECT 1 FROM kv WHERE key = ?"
    return bool(known and connection.execute(query, (TAKEN_OVER,)).fetchone())


def _in_the_file(paths: ProjectPaths, connection: sqlite3.Connection | None, limit: int) -> Earlier:
    from caloron.domain.adopted import adopt, parse_history, text_of

    try:
        with paths.sprints_json.open("rb") as file:
            text = file.read(_LARGEST_FILE)
        records = parse_history(text)
    except FileNotFoundError:
        return Earlier([], 0)
    except (OSError, ValueError) as error:
        return Earlier([], 0, f"{paths.sprints_json} cannot be read: {error}")
    query = "SELECT number, goal FROM sprints"
    known = connection.execute(query).fetchall() if connection else ()
    found = adopt(records, {row["number"]: text_of(row["goal"]) for row in known})
    newest = found[::-1] if limit < 0 else found[::-1][:limit]
    return Earlier([_sprint(paths, *sprint) for sprint in newest], len(found))


def _sprint(paths: ProjectPaths, number: int, record: dict[str, object]) -> EarlierSprint:
    return EarlierSprint(number, f"{paths.name}-{number}", record)


def find_earlier(
    paths: ProjectPaths, connection: sqlite3.Connection | None, named: str
) -> EarlierSprint | None:
    """A sprint of an older Caloron by its id or its number."""
    number = named.removeprefix("#").removeprefix(f"{paths.name}-")
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        return None
    if connection is None or not _taken_over(connection):
        known = _in_the_file(paths, connection, -1).sprints
        return next((sprint for sprint in known if sprint.number == int(number)), None)
    row = connection.execute(f"{_ROWS} AND position = ?", (HISTORY, int(number))).fetchone()
    return _sprint(paths, row["position"], json.loads(row["text"])) if row else None


def earlier_agents(
    connection: sqlite3.Connection | None, workspace: Path | None
) -> dict[str, list[dict[str, Any]]]:
    """The agents that somebody else wrote about, each with its versions, oldest first.

    They are in the ledger, or before the first sprint in the workspace of the older Caloron.
    """
    found: object = {}
    if connection is not None:
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'entries'").fetchone():
            query = "SELECT key, text FROM entries WHERE file = ? AND whose = 'theirs'"
            rows = connection.execute(query, (VERSIONS,)).fetchall()
            found = {row["key"]: json.loads(row["text"]) for row in rows}
    elif workspace is not None:
        found = _agents_in(workspace / VERSIONS)
    entries = found.items() if isinstance(found, dict) else ()
    return {
        agent: [version for version in versions if isinstance(version, dict)]
        for agent, versions in entries
        if isinstance(versions, list)
    }


def _agents_in(place: Path) -> object:
    from caloron.domain.adopted import parse_foreign

    try:
        with place.open("rb") as file:
            return parse_foreign(file.read(_LARGEST_FILE))
    except (OSError, ValueError):
        # The next sprint sets aside what cannot be read, and says so.
        return {}
