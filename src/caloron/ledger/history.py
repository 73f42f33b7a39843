"""`sprints.json`: one record per sprint that ended, beside those that an older Caloron left.

The records are kept one by one, so that the end of a sprint works out one and not all of them.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from caloron.domain.adopted import Adopted, Record, adopt, parse_foreign, parse_history, text_of
from caloron.domain.history import history_record
from caloron.ledger.earlier import HISTORY, TAKEN_OVER
from caloron.ledger.figures import figures_of
from caloron.ledger.ledger import SQL, Ledger
from caloron.ledger.locate import ProjectPaths
from caloron.ledger.projected import LARGEST_FILE, Projected, Seen, look, set_aside, write
from caloron.store import queue

_EMPTY: dict[str, Any] = {"sprints": []}


def history_file(project: ProjectPaths) -> Projected:
    return Projected(name=HISTORY, path=project.sprints_json)


def write_history(ledger: Ledger, project: ProjectPaths) -> list[str]:
    """Record the sprints that ended since, and write the file; what somebody else put there first.

    Gives lines for people about what was done with that.
    """
    told = take_in_history(ledger, project)
    _write(ledger, project)
    return told


def _write(ledger: Ledger, project: ProjectPaths) -> None:
    with ledger.db.snapshot() as connection:
        ended = [row["id"] for row in connection.execute(SQL["unrecorded_sprints"], _of_history())]
        entries = [_entry(connection, sprint) for sprint in ended]
    if entries:
        put_entries(ledger, entries)
    write(ledger, (history_file(project), history_text(ledger)))


def history_text(ledger: Ledger) -> bytes:
    """The file as its recorded entries make it."""
    records = ",\n    ".join(row["text"] for row in ledger.db.rows(SQL["entries"], _of_history()))
    text = f'{{\n  "sprints": [\n    {records}\n  ]\n}}\n' if records else '{"sprints": []}\n'
    return text.encode("utf-8", "replace")


def changed_entries(ledger: Ledger) -> list[tuple[dict[str, Any], str]]:
    """Entries of ended sprints that do not say what their facts say, as they should be and are."""
    with ledger.db.snapshot() as connection:
        rows = connection.execute(SQL["entries"], _of_history()).fetchall()
        known = {row["key"]: row["text"] for row in rows if row["whose"] == "ours"}
        ended = connection.execute(SQL["ended_sprints"]).fetchall()
        right = [_entry(connection, row["id"]) for row in ended]
    return [
        (entry, known.get(entry["key"], ""))
        for entry in right
        if entry["text"] != known.get(entry["key"])
    ]


def put_entries(ledger: Ledger, entries: list[dict[str, Any]]) -> None:
    with ledger.db.transaction("history") as connection:
        for entry in entries:
            connection.execute(SQL["put_entry"], entry)


def _of_history() -> dict[str, Any]:
    return {"file": HISTORY}


def _entry(connection: sqlite3.Connection, sprint: str) -> dict[str, Any]:
    figures = figures_of(connection, sprint)
    version = connection.execute(SQL["sprint"], {"sprint": sprint}).fetchone()["version"]
    return {
        "file": HISTORY,
        "key": sprint,
        "position": figures.state.sprint.number,
        "whose": "ours",
        "version": version,
        "text": json.dumps(history_record(figures.state, figures.runs), ensure_ascii=False),
    }


def take_in_history(ledger: Ledger, project: ProjectPaths) -> list[str]:
    """Take over what an older Caloron recorded; lines for people about what was done.

    The file as it was is kept beside its place.
    """
    seen = look(ledger, history_file(project))
    if seen.whose == "ours" or (seen.whose == "nobody" and _is_first(ledger)):
        if _is_first(ledger):
            ledger.put(TAKEN_OVER, "1")
        return []
    told = _take_over(ledger, project, seen) if seen.whose == "foreign" else []
    _write(ledger, project)
    return told


def _is_first(ledger: Ledger) -> bool:
    return not ledger.get(TAKEN_OVER)


def unknown_sprints(ledger: Ledger, records: list[Record]) -> list[Adopted]:
    """Those of somebody else's records that tell of sprints which are not known, numbered."""
    theirs = ledger.db.rows(SQL["newest_entries"], _of_history() | {"whose": "theirs", "limit": -1})
    before = [json.loads(row["text"]) for row in theirs]
    taken = {record["sprint_id"]: text_of(record.get("goal")) for record in before}
    taken |= {row["number"]: text_of(row["goal"]) for row in ledger.db.rows(SQL["goals"])}
    return adopt(records, taken, before)


def _take_over(ledger: Ledger, project: ProjectPaths, seen: Seen) -> list[str]:
    path = project.sprints_json
    try:
        if len(seen.text) > LARGEST_FILE:
            raise ValueError(f"it has more than {LARGEST_FILE} bytes")
        records = parse_history(seen.text)
    except ValueError as error:
        ledger.put(TAKEN_OVER, "1")
        kept = set_aside(ledger, path, "corrupt")
        return [f"{path} is corrupt ({error}); it is kept as {kept}"]
    found = unknown_sprints(ledger, records)
    if not found and (records or parse_foreign(seen.text) == _EMPTY) and _is_first(ledger):
        # An empty one, or our own from before digests were remembered: there is nothing to keep.
        ledger.put(TAKEN_OVER, "1")
        return []
    with ledger.db.transaction("adoption") as connection:
        for number, record in found:
            connection.execute(
                SQL["put_entry"],
                {
                    "file": HISTORY,
                    "key": f"{project.name}-{number}",
                    "position": number,
                    "whose": "theirs",
                    "version": 0,
                    "text": json.dumps(record, ensure_ascii=False),
                },
            )
        connection.execute(SQL["put_kv"], {"key": TAKEN_OVER, "value": "1"})
        payload = {"file": str(path), "sprints": len(found)}
        queue.append_event(connection, "state_imported", payload)
    kept = set_aside(ledger, path, "foreign")
    if not found:
        return [f"{path} was changed; it is kept as {kept}, and written anew"]
    return [f"taken over from {path}: {len(found)} sprints; the file as it was is kept as {kept}"]
