"""The files of a sprint that people and scripts read; the ledger stays the truth.

`$CALORON_KV_DIR/<sprint>.json` is written after each tick that changed something. One that
somebody else changed is taken in while no agent is at work, else set aside; a corrupt one is set
aside and written anew.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from caloron.domain.imports import Import
from caloron.domain.sprint import REVIEWER, State, Task
from caloron.ledger.ledger import SQL, Ledger, remember_since
from caloron.ledger.locate import home, require_id
from caloron.ledger.projected import Projected, digest, look
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


class _Count(msgspec.Struct):
    count: int = 0


class _FileTask(msgspec.Struct):
    status: str = ""
    intervention_count: int = 0


class _FileState(msgspec.Struct):
    tasks: dict[str, _FileTask]


class _File(msgspec.Struct):
    state: _FileState
    #: An older Caloron counted without a name for the count.
    interventions: dict[str, int | _Count] = msgspec.field(default_factory=dict)


class FoundFile(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in the place of the sprint's file."""

    #: `earlier`: it was there before the sprint.
    kind: Literal["ours", "edited", "earlier", "corrupt", "missing"]
    content: Import | None = None


def look_at(ledger: Ledger, sprint: str) -> FoundFile:
    """Whose text stands in the sprint's file."""
    file = Projected(name=sprint, path=kv_path(sprint))
    seen = look(ledger, file)
    if seen.whose != "foreign":
        return FoundFile(kind="ours" if seen.whose == "ours" else "missing")
    try:
        found = msgspec.json.decode(seen.text, type=_File)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError):
        return FoundFile(kind="corrupt")
    if not ledger.get(f"projection/{sprint}"):
        # It tells of a sprint that an older Caloron ran under this name.
        return FoundFile(kind="earlier")
    content = Import(
        statuses={i: t.status for i, t in found.state.tasks.items()},
        interventions={i: t.intervention_count for i, t in found.state.tasks.items()},
        agents={
            agent: told if isinstance(told, int) else told.count
            for agent, told in found.interventions.items()
        },
    )
    return FoundFile(kind="edited", content=content)


def write_anew(ledger: Ledger, sprint: str, now: float) -> None:
    """Write the sprint's file as the ledger has it, whatever stands in its place."""
    text = kv_text(ledger.state(sprint), now)
    with ledger.db.transaction("kv") as connection:
        connection.execute(SQL["put_kv"], {"key": f"projection/{sprint}", "value": digest(text)})
        remember_since(connection, sprint, now)
    write_kv(sprint, text)


def write_kv(sprint: str, text: bytes) -> None:
    write_atomic(kv_path(sprint), text)
