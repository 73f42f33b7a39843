"""`learnings.json` and the retro's page: what people and scripts read of what was learned.

The ledger is the truth. A file that somebody else wrote, be it an older Caloron, is taken over
while no agent is at work, else set aside; a corrupt one is set aside.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from caloron.domain.learnings import (
    Improvement,
    Kept,
    Noted,
    SprintRecord,
    improvements,
    po_context,
    same_meaning,
    with_told,
)
from caloron.domain.retro import Kpis
from caloron.ledger.figures import read_kept
from caloron.ledger.ledger import SQL, Ledger, remember_projection
from caloron.ledger.projected import Projected, digest, look, set_aside, write
from caloron.ledger.records import ended_records
from caloron.store import queue

_NAME = "learnings"
_LARGEST_FILE = 16 << 20
_MOST, _LONGEST = 1000, 1000


def learnings_file(workspace: Path) -> Path:
    return workspace / "learnings.json"


def learnings_projection(workspace: Path) -> Projected:
    return Projected(name=_NAME, path=learnings_file(workspace))


def report_file(workspace: Path) -> Path:
    return workspace / "retro_report.md"


def context_for(ledger: Ledger, sprint: str) -> str:
    """What the planner of this sprint is told; which improvements that were is remembered."""
    with ledger.db.snapshot() as connection:
        kept, records = read_kept(connection), ended_records(connection)
    context, keys = po_context([r for r in records if r.id != sprint], kept)
    told = with_told(kept, sprint, context, keys)
    if told != kept:
        ledger.put(_NAME, msgspec.json.encode(told).decode())
    return context


class Learned(NamedTuple):
    """What the file was written from, and lines for people about what was found in its place."""

    told: list[str]
    records: list[SprintRecord]
    kept: Kept


def write_learnings(ledger: Ledger, workspace: Path, *, busy: bool) -> Learned:
    """Write the file anew; what somebody else put there is dealt with first, and told."""
    told = take_in(ledger, workspace, busy=busy)
    with ledger.db.snapshot() as connection:
        records, kept = ended_records(connection), read_kept(connection)
    write(ledger, (learnings_projection(workspace), file_text(records, kept)))
    return Learned(told, records, kept)


def file_text(records: list[SprintRecord], kept: Kept) -> bytes:
    """The file in the shape that it has always had, with ids and fates added."""
    content = {
        "sprints": [_sprint(record) for record in (*kept.sprints, *records)],
        "improvements": [_improvement(found) for found in improvements(records, kept)],
        "po_context": po_context(records, kept)[0],
        "last_po_context": kept.last_po_context,
    }
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")


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


def _improvement(found: Improvement) -> dict[str, Any]:
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    return {name: value for name, value in fields.items() if name not in ("key", "for_planner")}


def take_in(ledger: Ledger, workspace: Path, *, busy: bool) -> list[str]:
    """Deal with a file that is not ours; lines for people about what was done."""
    path = learnings_file(workspace)
    seen = look(ledger, learnings_projection(workspace))
    if seen.whose != "foreign":
        return []
    try:
        found = parsed(seen.text)
    except ValueError as error:
        return [f"{path} is corrupt ({error}); it is kept as {set_aside(ledger, path, 'corrupt')}"]
    if busy:
        return [f"{path} was changed; it is kept as {set_aside(ledger, path, 'foreign')}"]
    with ledger.db.snapshot() as connection:
        kept = taken_over(read_kept(connection), ended_records(connection), found)
    value = msgspec.json.encode(kept).decode()
    with ledger.db.transaction("learnings") as connection:
        connection.execute(SQL["put_kv"], {"key": _NAME, "value": value})
        # Taken over once: the file is as good as ours until it is written anew.
        remember_projection(connection, _NAME, digest(seen.text))
        payload = {"file": str(path), "sprints": len(kept.sprints), "improvements": len(kept.noted)}
        queue.append_event(connection, "state_imported", payload)
    return [
        f"taken over from {path}: {len(kept.sprints)} sprints and {len(kept.noted)} improvements"
    ]


def kept_in_file(workspace: Path) -> Kept:
    """What the file of an older Caloron tells before a sprint took it over; nothing is written."""
    try:
        with learnings_file(workspace).open("rb") as file:
            found = parsed(file.read(_LARGEST_FILE + 1))
    except (OSError, ValueError):
        # The next sprint sets aside what cannot be read, and says so.
        return Kept()
    return taken_over(Kept(), [], found)


def parsed(text: bytes) -> dict[str, Any]:
    """What somebody else wrote there; a `ValueError` if it is nothing of the kind."""
    if len(text) > _LARGEST_FILE:
        raise ValueError(f"it has more than {_LARGEST_FILE} bytes")
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is not an object")
    for name in ("sprints", "improvements"):
        if not isinstance(found.get(name, []), list):
            raise ValueError(f"its {name} are not a list")
    return found


def taken_over(kept: Kept, records: list[SprintRecord], found: dict[str, Any]) -> Kept:
    """What a file says that the ledger does not know itself."""
    known = {record.id for record in records}
    since = records[-1].id if records else ""
    derived = {same_meaning(f.description) for record in records for f in record.findings}
    before = {noted.text: noted for noted in kept.noted}
    noted: dict[str, Noted] = {}
    dropped: set[str] = set()
    for entry in found.get("improvements", [])[:_MOST]:
        text, status = _worded(entry)
        key = same_meaning(text)
        if not text:
            continue
        if status == "retired":
            dropped.add(key)
        if key not in derived:
            noted.setdefault(key, before.get(text) or Noted(text=text, since=since))
    # What has retired by itself stands as retired in our own file: that is no person's word.
    by_itself = {i.key for i in improvements(records, kept) if i.status == "retired"}
    return msgspec.structs.replace(
        kept,
        sprints=_foreign_sprints(found.get("sprints", []), known),
        noted=tuple(noted.values()),
        dropped=tuple(sorted(dropped - (by_itself - set(kept.dropped)))),
        last_po_context=kept.last_po_context or _text(found.get("last_po_context"), 20_000),
    )


def _worded(entry: object) -> tuple[str, str]:
    if isinstance(entry, dict):
        return _text(entry.get("text") or entry.get("description")), _text(entry.get("status"))
    return _text(entry), ""


def _foreign_sprints(entries: Iterable[object], known: set[str]) -> tuple[SprintRecord, ...]:
    """Sprints that the ledger does not have; those without an id, or with a taken one, get one."""
    found: dict[str, SprintRecord] = {}
    numbered = (entry for entry in list(entries)[-_MOST:] if isinstance(entry, dict))
    for number, entry in enumerate(numbered, 1):
        id = _text(entry.get("sprint_id") or entry.get("id"), 64)
        if id in known:
            continue
        id = f"before-{id or number}" if not id or id.isdigit() else id
        record = _record(id, entry)
        while id in found and found[id] != record:
            id += "-again"
            record = msgspec.structs.replace(record, id=id)
        found[id] = record
    return tuple(found.values())


def _record(id: str, entry: dict[str, Any]) -> SprintRecord:
    total, completed = _number(entry.get("total")), _number(entry.get("completed"))
    clarity = entry.get("avg_clarity")
    blockers = entry.get("blockers", [])
    texts = blockers if isinstance(blockers, list) else [blockers]
    return SprintRecord(
        id=id,
        goal=_text(entry.get("goal")),
        kpis=Kpis(
            total_tasks=int(total),
            completed_tasks=int(completed),
            completion_rate=round(completed / total, 3) if total else 0.0,
            failure_count=int(_number(entry.get("failed"))),
            clarity_count=int(total) if clarity is not None else 0,
            avg_clarity=_number(clarity) if clarity is not None else None,
            total_interventions=int(_number(entry.get("supervisor_events"))),
            sprint_time_s=_number(entry.get("sprint_time_s")),
            cost_usd=_number(entry.get("cost_usd")),
        ),
        blockers=tuple(text for b in texts[:_MOST] if (text := _text(b))),
        stopped=_text(entry.get("stopped")),
    )


def _text(value: object, longest: int = _LONGEST) -> str:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return ""
    clean = str(value).encode("utf-8", "replace").decode()
    return clean.strip()[:longest]


def _number(value: object) -> float:
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if fits and 0 <= value < 1e12 else 0.0  # type: ignore[operator, arg-type]
