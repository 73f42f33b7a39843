"""The files of a sprint that people and scripts read; the ledger stays the truth.

`$CALORON_KV_DIR/<sprint>.json` is written after each tick that changed something. One that
somebody else changed is taken in while no agent is at work, else set aside; a corrupt one is set
aside and written anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from caloron.domain.imports import Import
from caloron.domain.sprint import REVIEWER, State, Task
from caloron.ledger.ledger import Ledger
from caloron.ledger.locate import home, require_id
from caloron.store import queue
from caloron.store.files import write_atomic


def kv_path(sprint: str) -> Path:
    directory = os.environ.get("CALORON_KV_DIR", "")
    base = Path(directory) if directory else home() / "kv"
    return base / f"{require_id(sprint, 'sprint')}.json"


def kv_text(state: State, now: float) -> bytes:
    """The sprint in the shape that the tick's file has always had."""
    tasks = {task.id: _record(task) for task in state.tasks.values()}
    interventions = {
        task.agent: {"count": task.interventions}
        for task in state.tasks.values()
        if task.interventions
    }
    content = {
        "state": {"sprint_id": state.sprint.id, "tasks": tasks},
        "interventions": interventions,
        "since": iso(now),
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def _record(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "title": task.plan.title,
        "status": str(task.status),
        "depends_on": list(task.plan.depends_on),
        "agent_id": task.agent,
        "reviewer_id": REVIEWER,
        "issue_number": task.issue,
        "pr_number": task.pull,
        "started_at": iso(task.started_at),
        "completed_at": iso(task.completed_at),
        "intervention_count": task.interventions,
    }


def iso(moment: float | None) -> str | None:
    return None if moment is None else datetime.fromtimestamp(moment, UTC).isoformat()


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


class _FileTask(msgspec.Struct):
    status: str = ""
    intervention_count: int = 0


class _FileState(msgspec.Struct):
    tasks: dict[str, _FileTask]


class _File(msgspec.Struct):
    state: _FileState


class FoundFile(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in the place of the sprint's file."""

    kind: Literal["ours", "edited", "corrupt", "missing"]
    content: Import | None = None


def look_at(ledger: Ledger, sprint: str) -> FoundFile:
    """Whose text stands in the sprint's file."""
    try:
        text = kv_path(sprint).read_bytes()
    except FileNotFoundError:
        return FoundFile(kind="missing")
    if digest(text) in ledger.get(f"projection/{sprint}").split():
        return FoundFile(kind="ours")
    try:
        found = msgspec.json.decode(text, type=_File)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError):
        return FoundFile(kind="corrupt")
    content = Import(
        statuses={i: t.status for i, t in found.state.tasks.items()},
        interventions={i: t.intervention_count for i, t in found.state.tasks.items()},
    )
    return FoundFile(kind="edited", content=content)


def set_aside(ledger: Ledger, sprint: str, kind: str) -> Path:
    """Keep a file that cannot be taken in, beside its place, and write that down."""
    path = kv_path(sprint)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    kept = path.with_name(f"{path.name}.{kind}-{stamp}")
    path.rename(kept)
    with ledger.db.transaction("set_aside") as connection:
        payload = {"sprint": sprint, "kind": kind, "kept": str(kept)}
        queue.append_event(connection, "state_file_set_aside", payload)
    return kept


def write_kv(sprint: str, text: bytes) -> None:
    write_atomic(kv_path(sprint), text)


def write_history(ledger: Ledger, path: Path) -> None:
    """`sprints.json`: one record per sprint that ended, under its integer."""
    rows = ledger.db.rows(
        "SELECT s.number, s.goal, s.created_at, s.ended_at,"
        " (SELECT count(*) FROM tasks t WHERE t.sprint = s.id) AS total,"
        " (SELECT count(*) FROM tasks t WHERE t.sprint = s.id AND t.status = 'Done') AS done"
        " FROM sprints s WHERE s.ended_at IS NOT NULL ORDER BY s.number"
    )
    sprints = [
        {
            "sprint_id": row["number"],
            "completed_at": iso(row["ended_at"]),
            "goal": row["goal"],
            "exit_code": 0 if row["total"] and row["done"] == row["total"] else 10,
            "duration_s": round(row["ended_at"] - row["created_at"], 1),
            "total_tasks": row["total"],
            "completed_tasks": row["done"],
            "failed_tasks": row["total"] - row["done"],
        }
        for row in rows
    ]
    write_atomic(path, (json.dumps({"sprints": sprints}, indent=2) + "\n").encode())
