"""A sprint as far as one line per task needs it, read with the standard library alone: it is asked
for hundreds of times a day, and must answer at once."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from caloron.domain.status import Status
from caloron.errors import NotFound

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


# Plain classes: made at each start, the clever ones cost more than all the reading.


class SeenWork:
    def __init__(self, data: dict[str, Any]) -> None:
        self.item: str = data["item"]
        self.role: str = data["role"]
        self.round: int = data.get("round", 1)


class SeenPause:
    def __init__(self, data: dict[str, Any]) -> None:
        self.until: float = data["until"]
        self.what: str = data["what"]


class SeenWait:
    def __init__(self, data: dict[str, Any]) -> None:
        self.head: str = data["head"]
        self.what: str = data["what"]


class SeenRevert:
    def __init__(self, data: dict[str, Any]) -> None:
        self.merged: bool = data.get("merged", False)


class SeenMember:
    def __init__(self, data: dict[str, Any]) -> None:
        self.task: str = data["task"]


class SeenTrain:
    def __init__(self, data: dict[str, Any]) -> None:
        self.item: str = data.get("item", "")
        self.members = [SeenMember(member) for member in data["members"]]


class SeenPlan:
    def __init__(self, data: dict[str, Any]) -> None:
        self.id: str = data["id"]
        self.depends_on: tuple[str, ...] = tuple(data.get("depends_on", ()))
        self.framework: str = data.get("framework", "")


class SeenTask:
    """A task; what an older Caloron did not write yet is as it was then."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.id: str = data["plan"]["id"]
        self.plan = SeenPlan(data["plan"])
        self.status = Status(data.get("status", "Pending"))
        self.reason: str = data.get("reason", "")
        self.issue: int | None = data.get("issue")
        self.escalation_issue: int | None = data.get("escalation_issue")
        self.work = _work(data.get("work"))
        self.interventions: int = data.get("interventions", 0)
        self.head: str = data.get("head", "")
        self.pushed: str = data.get("pushed", "")
        self.judged: str = data.get("judged", "")
        self.merging: str = data.get("merging", "")
        self.landed: str = data.get("landed", "")
        revert, waits = data.get("revert"), data.get("waits")
        self.revert = SeenRevert(revert) if revert else None
        self.waits = SeenWait(waits) if waits else None


class SeenSprint:
    def __init__(self, data: dict[str, Any]) -> None:
        self.id: str = data["id"]
        self.number: int = data["number"]
        self.phase: str = data.get("phase", "planning")
        self.stopped: str = data.get("stopped", "")
        self.stopped_log: str = data.get("stopped_log", "")
        self.halted: str = data.get("halted", "")
        self.framework: str = data.get("framework", "")
        self.parallel: int = data.get("parallel", 4)
        self.baseline_work = _work(data.get("baseline_work"))
        self.po = _work(data.get("po"))
        train = data.get("train")
        self.train = SeenTrain(train) if train else None
        held = data.get("held_plan") or {}
        self.plan_issue: int | None = held.get("number")
        self.plan_declined: str = held.get("declined", "")
        paused: dict[str, dict[str, Any]] = data.get("paused", {})
        self.paused = {name: SeenPause(pause) for name, pause in paused.items()}


class SeenState:
    def __init__(
        self,
        sprint: SeenSprint,
        tasks: dict[str, SeenTask],
        queued: frozenset[str],
        begun: frozenset[str],
        ended: frozenset[str],
    ) -> None:
        self.sprint = sprint
        self.tasks = tasks
        self.queued = queued
        #: Work of which an agent was started at least once.
        self.begun = begun
        self.ended = ended


def _work(data: dict[str, Any] | None) -> SeenWork | None:
    return SeenWork(data) if data else None


def glance(connection: sqlite3.Connection, running: str = "") -> SeenState:
    """The sprint that runs, else the last one."""
    row = connection.execute(_SPRINT, (running,)).fetchone()
    if row is None:
        raise NotFound("this project has no sprint yet", hint='caloron sprint "<goal>"')
    sprint = SeenSprint(json.loads(row["data"]))
    tasks = [SeenTask(json.loads(t["data"])) for t in connection.execute(_TASKS, (sprint.id,))]
    queued, begun, ended = (
        frozenset(row[0] for row in connection.execute(query, {"scope": f"{sprint.id}/"}))
        for query in (_QUEUED, _BEGUN, _ENDED)
    )
    return SeenState(sprint, {t.id: t for t in tasks}, queued, begun, ended)
