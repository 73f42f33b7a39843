"""The cost of the end of a sprint after 10,000 earlier sprints, and after 10."""

from __future__ import annotations

import json
import sqlite3
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.measure import Measure, alternate, median
from caloron.domain.model.feedback import Feedback
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.sprint import Sprint, SprintSettings
from caloron.domain.model.status import Step
from caloron.domain.model.task import Task, TaskLog
from caloron.engine.exports import SprintExports
from caloron.engine.signals import SystemClock
from caloron.ledger import projects
from caloron.ledger.ledger import SQL, Ledger
from caloron.ledger.legacy import import_home
from caloron.ledger.settings import ProjectConfig
from caloron.store import queue

_SIZES = (10, 10_000)
_TASKS = 3
_ROUNDS = 7
#: A quarter was run by an older Caloron.
_ADOPTED = 4
_DAY = 86_400.0


class Project:
    """A project with many sprints behind it, and the end of one more."""

    def __init__(self, path: Path, sprints: int) -> None:
        path.mkdir()
        config = ProjectConfig(name="bench", framework="stub")
        self._project = projects.Project("bench", path, config)
        self._ledger = Ledger(self._project.ledger)
        self._adopt(sprints // _ADOPTED)
        self._numbers = iter(range(sprints // _ADOPTED + 1, 1 << 30))
        with self._ledger.db.transaction("fill") as connection:
            for _ in range(sprints - sprints // _ADOPTED):
                _add_sprint(connection, next(self._numbers))
        #: The first time, all that was filled in is recorded.
        self.turn()

    def _adopt(self, count: int) -> None:
        record = {"exit_code": 0, "total_tasks": 3, "completed_tasks": 2, "blockers": ["none"]}
        old = [{"sprint_id": n, "goal": f"goal {n}", **record} for n in range(1, count + 1)]
        self._project.sprints_json.write_text(json.dumps({"sprints": old}))
        import_home(self._ledger, self._project)

    def turn(self) -> float:
        """Seconds from the last tick of a sprint to the last of its files."""
        with self._ledger.db.transaction("fill") as connection:
            name = _add_sprint(connection, next(self._numbers))
        began = time.perf_counter()
        clock, messages = SystemClock(), list[str]()
        SprintExports(self._project, self._ledger, name, clock, messages.append).write_end()
        return time.perf_counter() - began

    def close(self) -> float:
        """The size of the history in megabytes."""
        self._ledger.close()
        return self._project.sprints_json.stat().st_size / 1e6


def _add_sprint(connection: sqlite3.Connection, number: int) -> str:
    name, at = f"bench-{number}", number * _DAY
    goal, until = f"goal {number}", at + 600
    sprint = Sprint(
        id=name,
        number=number,
        goal=goal,
        phase="ended",
        ended_at=until,
        settings=SprintSettings(created_at=at),
    )
    connection.execute(
        "INSERT INTO sprints VALUES (?, ?, ?, 'ended', ?, ?, 1, ?)",
        (name, number, goal, at, until, msgspec.json.encode(sprint)),
    )
    for position in range(_TASKS):
        _add_task(connection, name, f"task-{number}-{position}", position)
    return name


def _add_task(connection: sqlite3.Connection, sprint: str, id: str, position: int) -> None:
    feedback = Feedback(task_clarity=6, blockers=(f"the word {id} was unclear",))
    plan = PlannedTask(id=id, title=id, agent_prompt="do it")
    task = Task(plan=plan, step=Step.DONE, log=TaskLog(feedback=feedback))
    values = {"sprint": sprint, "id": id, "position": position, "status": "Done", "reason": ""}
    connection.execute(SQL["put_task"], values | {"data": msgspec.json.encode(task)})
    for role in ("implement", "verify", "review"):
        item = f"{sprint}/{id}/1-{role}"
        queue.enqueue(connection, item, role, "{}")
        queue.append_event(connection, "attempt_started", {"attempt": 1}, item=item)
        queue.append_event(connection, "attempt_ended", {"exit_code": 0}, item=item)
        report = {"token": 1, "framework": "stub", "model": "m", "usd": 0.1}
        queue.append_event(connection, "agent_reported", report, item=item)


def run() -> list[Measure]:
    with tempfile.TemporaryDirectory(prefix="caloron-bench-") as directory:
        projects = [Project(Path(directory, str(size)), size) for size in _SIZES]
        few, many = alternate(_ROUNDS, *(project.turn for project in projects))
        megabytes = [project.close() for project in projects][-1]
    return [
        Measure(
            f"end of a sprint after {_SIZES[-1]:,} others",
            median(many) * 1000,
            "ms",
            1000,
            note=f"all files of the project; after {_SIZES[0]} others {median(few) * 1000:.0f} ms;"
            f" sprints.json has {megabytes:.1f} MB; medians of {_ROUNDS} in turn",
        )
    ]
