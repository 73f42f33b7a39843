"""Reads an edited `learnings.json`, or that of the older program, into the learnings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from caloron.domain.compat.legacy_sprints import amount_of, parse_json, text_of
from caloron.domain.reporting.history import remembered
from caloron.domain.reporting.learnings import (
    Kept,
    Noted,
    SprintRecord,
    improvements,
    same_meaning,
)

LARGEST_FILE = 16 << 20
_MAX_ENTRIES, _MAX_TEXT = 1000, 1000
#: The names in `sprints.json` of fields that have other names here.
_HISTORY_FIELDS = {
    "total": "total_tasks",
    "completed": "completed_tasks",
    "failed": "failed_tasks",
}


def parsed(text: bytes) -> dict[str, Any]:
    """Parse an edited file; `ValueError` if it does not have the shape of one."""
    if len(text) > LARGEST_FILE:
        raise ValueError(f"it has more than {LARGEST_FILE} bytes")
    content = parse_json(text)
    if not isinstance(content, dict):
        raise ValueError("it is not an object")
    for name in ("sprints", "improvements"):
        if not isinstance(content.get(name, []), list):
            raise ValueError(f"its {name} are not a list")
    return content


def merged(kept: Kept, records: list[SprintRecord], content: dict[str, Any]) -> Kept:
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
