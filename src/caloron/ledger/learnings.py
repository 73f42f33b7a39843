"""`learnings.json`: the managed file with everything that later planners learn from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from caloron.domain.compat.legacy_sprints import amount_of, parse_json, text_of
from caloron.domain.reporting.history import remembered
from caloron.domain.reporting.learnings import (
    Kept,
    Noted,
    SprintRecord,
    improvements,
    planner_context,
    same_meaning,
    with_context,
)
from caloron.ledger.exports import Export, digest, keep_aside, read
from caloron.ledger.ledger import SQL, Ledger, remember_export
from caloron.ledger.run_history import ended_records, read_kept
from caloron.ledger.workspace_files import json_text
from caloron.store import queue

_NAME = "learnings"
_LARGEST_FILE = 16 << 20
_MAX_ENTRIES, _MAX_TEXT = 1000, 1000
#: The names in `sprints.json` of fields that have other names here.
_HISTORY_FIELDS = {
    "total": "total_tasks",
    "completed": "completed_tasks",
    "failed": "failed_tasks",
}


def learnings_file(ledger: Ledger, workspace: Path) -> Export:
    def text() -> bytes:
        with ledger.db.snapshot() as connection:
            return file_text(ended_records(connection), read_kept(connection))

    def describe_edit(edited: bytes) -> str:
        content = _parsed(edited)
        with ledger.db.snapshot() as connection:
            kept, records = read_kept(connection), ended_records(connection)
        is_new = _merged(kept, records, content) != kept
        return "the next sprint reads it back" if is_new else ""

    return Export(_NAME, workspace / "learnings.json", text, describe_edit)


def context_for(ledger: Ledger, sprint: str) -> str:
    """Return the learnings for the planner of a sprint, and store which improvements they had."""
    with ledger.db.snapshot() as connection:
        kept, records = read_kept(connection), ended_records(connection)
    context, keys = planner_context([r for r in records if r.id != sprint], kept)
    updated = with_context(kept, sprint, context, keys)
    if updated != kept:
        ledger.put(_NAME, msgspec.json.encode(updated).decode())
    return context


def file_text(records: list[SprintRecord], kept: Kept) -> bytes:
    """Return the file in the seeds' shape, with ids and fates of improvements added."""
    content = {
        "sprints": [_sprint(record) for record in (*kept.sprints, *records)],
        "improvements": [
            {n: v for n, v in msgspec.structs.asdict(i).items() if n not in ("key", "for_planner")}
            for i in improvements(records, kept)
        ],
        "po_context": planner_context(records, kept)[0],
        "last_po_context": kept.last_context,
    }
    return json_text(content)


def _sprint(record: SprintRecord) -> dict[str, Any]:
    kpis = record.kpis
    return {
        "sprint_id": record.id,
        "goal": record.goal,
        "total": kpis.total_tasks,
        "completed": kpis.completed_tasks,
        "failed": kpis.failure_count,
        "avg_clarity": kpis.avg_clarity,
        "supervisor_events": kpis.total_interventions,
        "sprint_time_s": kpis.sprint_time_s,
        "cost_usd": kpis.cost_usd,
        "blockers": list(record.blockers),
        "stopped": record.stopped,
    }


def read_back(ledger: Ledger, workspace: Path, *, busy: bool) -> list[str]:
    """Import an edited file; return messages. While agents work, keep it aside instead."""
    export = learnings_file(ledger, workspace)
    path, content = export.path, read(ledger, export.name, export.path)
    if content.author != "other":
        return []
    try:
        edited = _parsed(content.text)
    except ValueError as error:
        kept_as = keep_aside(ledger, path, content.text, readable=False)
        return [f"{path} is corrupt ({error}); it is kept as {kept_as}"]
    if busy:
        return [f"{path} was changed; it is kept as {keep_aside(ledger, path, content.text)}"]
    with ledger.db.snapshot() as connection:
        kept = _merged(read_kept(connection), ended_records(connection), edited)
    value = msgspec.json.encode(kept).decode()
    with ledger.db.transaction("learnings") as connection:
        connection.execute(SQL["put_kv"], {"key": _NAME, "value": value})
        # The text was imported: it may be overwritten from now on.
        remember_export(connection, _NAME, digest(content.text))
        payload = {"file": str(path), "sprints": len(kept.sprints), "improvements": len(kept.noted)}
        queue.append_event(connection, "state_imported", payload)
    return [f"imported from {path}: {len(kept.sprints)} sprints, {len(kept.noted)} improvements"]


def kept_in_file(workspace: Path) -> Kept:
    """Return the content of the older program's file before its import; write nothing."""
    try:
        with (workspace / "learnings.json").open("rb") as file:
            content = _parsed(file.read(_LARGEST_FILE + 1))
    except (OSError, ValueError):
        # The next sprint keeps the file aside, with a message.
        return Kept()
    return _merged(Kept(), [], content)


def _parsed(text: bytes) -> dict[str, Any]:
    """Parse an edited file; `ValueError` if it does not have the shape of one."""
    if len(text) > _LARGEST_FILE:
        raise ValueError(f"it has more than {_LARGEST_FILE} bytes")
    content = parse_json(text)
    if not isinstance(content, dict):
        raise ValueError("it is not an object")
    for name in ("sprints", "improvements"):
        if not isinstance(content.get(name, []), list):
            raise ValueError(f"its {name} are not a list")
    return content


def _merged(kept: Kept, records: list[SprintRecord], content: dict[str, Any]) -> Kept:
    """Return the learnings with those entries of a file that the ledger does not derive itself."""
    known = {record.id for record in records}
    since = records[-1].id if records else ""
    derived = {same_meaning(f.description) for record in records for f in record.findings}
    before = {noted.text: noted for noted in kept.noted}
    noted: dict[str, Noted] = {}
    dropped: set[str] = set()
    for entry in content.get("improvements", [])[:_MAX_ENTRIES]:
        text, status = _worded(entry)
        key = same_meaning(text)
        if not text:
            continue
        if status == "retired":
            dropped.add(key)
        if key not in derived:
            noted.setdefault(key, before.get(text) or Noted(text=text, since=since))
    # Our own file lists improvements that retired by themselves: no person dropped those.
    by_itself = {i.key for i in improvements(records, kept) if i.status == "retired"}
    return msgspec.structs.replace(
        kept,
        sprints=_foreign_sprints(content.get("sprints", []), known),
        noted=tuple(noted.values()),
        dropped=tuple(sorted(dropped - (by_itself - set(kept.dropped)))),
        last_context=kept.last_context or text_of(content.get("last_po_context"), 20_000),
    )


def _worded(entry: object) -> tuple[str, str]:
    """Return the text and the status of an improvement in the file."""
    fields = entry if isinstance(entry, dict) else {"text": entry}
    text = fields.get("text") or fields.get("description")
    return text_of(text, _MAX_TEXT), text_of(fields.get("status"), _MAX_TEXT)


def _foreign_sprints(entries: Iterable[object], known: set[str]) -> tuple[SprintRecord, ...]:
    """Return sprints that the ledger does not have, each with an id that is unique."""
    sprints: dict[str, SprintRecord] = {}
    numbered = (entry for entry in list(entries)[-_MAX_ENTRIES:] if isinstance(entry, dict))
    for number, entry in enumerate(numbered, 1):
        id = text_of(entry.get("sprint_id") or entry.get("id"), 64)
        if id in known:
            continue
        id = f"before-{id or number}" if not id or id.isdigit() else id
        record = _record(id, entry)
        while id in sprints and sprints[id] != record:
            id += "-again"
            record = msgspec.structs.replace(record, id=id)
        sprints[id] = record
    return tuple(sprints.values())


def _record(id: str, entry: dict[str, Any]) -> SprintRecord:
    fields = {_HISTORY_FIELDS.get(name, name): value for name, value in entry.items()}
    record = remembered(id, fields)
    return msgspec.structs.replace(
        record,
        kpis=msgspec.structs.replace(record.kpis, cost_usd=amount_of(entry.get("cost_usd"))),
        stopped=text_of(entry.get("stopped"), _MAX_TEXT),
    )
