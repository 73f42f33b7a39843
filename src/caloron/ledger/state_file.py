"""The state file of a sprint, `$CALORON_KV_DIR/<sprint>.json`: a managed file.

It is written after each tick that changed something. An edit is read back while no agent is at
work.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from caloron.domain.model.roles import REVIEWER
from caloron.domain.model.sprint import State
from caloron.domain.model.task import Task
from caloron.ledger.exports import Export
from caloron.ledger.ledger import Ledger
from caloron.ledger.locate import home, require_id
from caloron.store.files import write_atomic

if TYPE_CHECKING:
    from caloron.domain.rules.people.state_file_edit import FileEdit


def kv_path(sprint: str) -> Path:
    directory = os.environ.get("CALORON_KV_DIR", "")
    base = Path(directory) if directory else home() / "kv"
    return base / f"{require_id(sprint, 'sprint')}.json"


def kv_text(state: State, now: float) -> bytes:
    """Return the sprint in the shape that the seeds gave this file."""
    tasks = {task.id: _record(task) for task in state.tasks.values()}
    interventions = {
        task.agent: {"count": task.supervision.interventions}
        for task in state.tasks.values()
        if task.supervision.interventions
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
        "issue_number": task.links.issue,
        "pr_number": task.links.pull,
        "started_at": iso(task.times.started_at),
        "completed_at": iso(task.times.completed_at),
        "intervention_count": task.supervision.interventions,
    }


def iso(moment: float | None) -> str | None:
    return None if moment is None else datetime.fromtimestamp(moment, UTC).isoformat()


def state_file(ledger: Ledger, sprint: str) -> Export:
    def text() -> bytes:
        state = ledger.state(sprint)
        return kv_text(
            state, float(ledger.get(f"since/{sprint}") or state.sprint.settings.created_at)
        )

    def describe_edit(edited: bytes) -> str:
        from caloron.domain.rules.people.state_file_edit import apply_file_edit

        content, state = parse_edit(edited), ledger.state(sprint)
        outcome = apply_file_edit(state, content, state.sprint.settings.created_at)[1]
        changes = [
            f"{task}: {change}"
            for task, change in outcome.items()
            if ("→" in change or " set " in change) and "cannot be done" not in change
        ]
        return f"`caloron resume {sprint}` reads it back: {'; '.join(changes)}" if changes else ""

    return Export(sprint, kv_path(sprint), text, describe_edit)


class _Count(msgspec.Struct):
    count: int = 0


class _FileTask(msgspec.Struct):
    status: str = ""
    intervention_count: int = 0


class _FileState(msgspec.Struct):
    tasks: dict[str, _FileTask]


class _File(msgspec.Struct):
    state: _FileState
    #: Older versions of Caloron wrote the number itself.
    interventions: dict[str, int | _Count] = msgspec.field(default_factory=dict)


def parse_edit(text: bytes) -> FileEdit:
    """Return the content of an edited state file; `ValueError` if it cannot be read."""
    from caloron.domain.rules.people.state_file_edit import FileEdit

    try:
        file = msgspec.json.decode(text, type=_File)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    return FileEdit(
        statuses={name: task.status for name, task in file.state.tasks.items()},
        interventions={name: t.intervention_count for name, t in file.state.tasks.items()},
        agents={
            agent: count if isinstance(count, int) else count.count
            for agent, count in file.interventions.items()
        },
    )


def write_kv(sprint: str, text: bytes) -> None:
    """Write a text whose digest a tick has committed."""
    write_atomic(kv_path(sprint), text)
