"""Reads a sprint for `why` with the standard library alone, because `why` must answer at once."""

from __future__ import annotations

import json
import sqlite3
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from caloron.domain.model.status import Status, Step
from caloron.errors import NotFound

if TYPE_CHECKING:
    from caloron.domain.model.sprint import Sprint, State
    from caloron.domain.model.task import Task

_SPRINT = "SELECT data FROM sprints ORDER BY id = ? DESC, number DESC LIMIT 1"
_TASKS = "SELECT data FROM tasks WHERE sprint = ? ORDER BY position"
_BEGUN = "SELECT item FROM leases WHERE item > :scope AND item < :scope || '~' AND attempt > 0"
# The status is said twice: only then is the short index of open work used.
_QUEUED = (
    "SELECT id FROM work_items WHERE status = 'pending' AND status IN ('pending', 'in_flight')"
    " AND substr(id, 1, length(:scope)) = :scope"
)
_ENDED = (
    "SELECT w.id FROM work_items w JOIN leases l ON l.item = w.id"
    " WHERE w.status = 'in_flight' AND w.status IN ('pending', 'in_flight')"
    " AND l.result IS NOT NULL AND substr(w.id, 1, length(:scope)) = :scope"
)


class _Row(SimpleNamespace):
    """The JSON of a row with attributes; a field that the row does not have is None.

    Building the typed structs costs more than all the reading.
    """

    def __getattr__(self, name: str) -> None:
        return None


def _read(data: bytes) -> Any:
    return json.loads(data, object_hook=lambda fields: _Row(**fields))


def _task(data: bytes) -> Task:
    task = _read(data)
    task.id, task.status, task.step = task.plan.id, Status(task.status), Step(task.step)
    return cast("Task", task)


def _sprint(data: bytes) -> Sprint:
    sprint = _read(data)
    approval = sprint.planning.approval
    sprint.plan_issue = approval.number if approval else None
    sprint.plan_declined = approval.declined if approval else ""
    sprint.availability.providers = vars(sprint.availability.providers)
    return cast("Sprint", sprint)


class Glance(NamedTuple):
    """The state of a sprint as far as `why` reads it, and the work that was started before."""

    state: State
    #: Work for which an agent was started at least once.
    begun: frozenset[str]


def glance(connection: sqlite3.Connection, running: str = "") -> Glance:
    """Read the sprint that runs, else the last one."""
    row = connection.execute(_SPRINT, (running,)).fetchone()
    if row is None:
        raise NotFound("this project has no sprint yet", hint='caloron sprint "<goal>"')
    sprint = _sprint(row["data"])
    tasks = [_task(t["data"]) for t in connection.execute(_TASKS, (sprint.id,))]
    queued, begun, ended = (
        frozenset(row[0] for row in connection.execute(query, {"scope": f"{sprint.id}/"}))
        for query in (_QUEUED, _BEGUN, _ENDED)
    )
    state: Any = _Row(sprint=sprint, tasks={t.id: t for t in tasks}, queued=queued, ended=ended)
    return Glance(state, begun)
