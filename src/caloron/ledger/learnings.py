"""`learnings.json`: the managed file with everything that later planners learn from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from caloron.domain.reporting.learnings import (
    Kept,
    SprintRecord,
    improvements,
    planner_context,
    with_context,
)
from caloron.ledger.exports import Export, digest, keep_aside, read
from caloron.ledger.ledger import SQL, Ledger, remember_export
from caloron.ledger.run_history import ended_records, read_kept
from caloron.ledger.workspace_files import json_text
from caloron.store import queue

_NAME = "learnings"


def learnings_file(ledger: Ledger, workspace: Path) -> Export:
    """Return `learnings.json` as an exported file."""

    def text() -> bytes:
        with ledger.db.snapshot() as connection:
            return file_text(ended_records(connection), read_kept(connection))

    def describe_edit(edited: bytes) -> str:
        from caloron.ledger.learnings_edit import merged, parsed

        content = parsed(edited)
        with ledger.db.snapshot() as connection:
            kept, records = read_kept(connection), ended_records(connection)
        is_new = merged(kept, records, content) != kept
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
    from caloron.ledger.learnings_edit import merged, parsed

    try:
        edited = parsed(content.text)
    except ValueError as error:
        kept_as = keep_aside(ledger, path, content.text, readable=False)
        return [f"{path} is corrupt ({error}); it is kept as {kept_as}"]
    if busy:
        return [f"{path} was changed; it is kept as {keep_aside(ledger, path, content.text)}"]
    with ledger.db.snapshot() as connection:
        kept = merged(read_kept(connection), ended_records(connection), edited)
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
    from caloron.ledger.learnings_edit import LARGEST_FILE, merged, parsed

    try:
        with (workspace / "learnings.json").open("rb") as file:
            content = parsed(file.read(LARGEST_FILE + 1))
    except (OSError, ValueError):
        # The next sprint keeps the file aside, with a message.
        return Kept()
    return merged(Kept(), [], content)
