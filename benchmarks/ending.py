"""What the end of a sprint writes down when 10,000 sprints came before it, and when 10 did."""

from __future__ import annotations

import json
import sqlite3
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.measure import Measure, alternate, median
from caloron.domain.feedback import Feedback
from caloron.domain.plan import PlannedTask
from caloron.domain.sprint import Sprint, Task
from caloron.domain.status import Status
from caloron.ledger.history import write_history
from caloron.ledger.ledger import SQL, Ledger
from caloron.ledger.locate import ProjectPaths
from caloron.ledger.workfiles import WorkFiles
from caloron.stages.retro_page import hold_retro
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
        self._paths = ProjectPaths("bench", path)
        self._ledger = Ledger(self._paths.ledger)
        self._workspace = path / "workspace"
        told: list[str] = []
        self._files = WorkFiles(self._ledger, self._workspace, framework="stub", tell=told.append)
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
        self._paths.sprints_json.write_text(json.dumps({"sprints": old}))
        write_history(self._ledger, self._paths)

    def turn(self) -> float:
        """Seconds from the last tick of a sprint to the last of its files."""
        with self._ledger.db.transaction("fill") as connection:
            name = _add_sprint(connection, next(self._numbers))
        began = time.perf_counter()
        write_history(self._ledger, self._paths)
        self._files.write_versions(name)
        hold_retro(self._ledger, self._workspace, name, _DAY)
        return time.perf_counter() - began

    def close(self) -> float:
        """The size of the history in megabytes."""
        self._ledger.close()
        return self._paths.sprints_json.stat().st_size / 1e6


def _add_sprint(connection: sqlite3.Connection, number: int) -> str:
    name, at = f"bench-{number}", number * _DAY
    goal, until = f"goal {number}", at + 600
    sprint = Sprint(id=name, number=number, goal=goal, phase="ended", created_at=at, ended_at=until)
    connection.execute(
        "INSERT INTO sprints VALUES (?, ?, ?, 'ended', ?, ?, 1, ?)",
        (name, number, goal, at, until, msgspec.json.encode(sprint)),
    )
    for place in range(_TASKS):
        _add_task(connection, name, f"task-{number}-{place}", place)
    return name


def _add_task(connection: sqlite3.Connection, sprint: str, id: str, place: int) -> None:
    said = Feedback(task_clarity=6, blockers=(f"the word {id} was unclear",))
    plan = PlannedTask(id=id, title=id, agent_prompt="do it")
    task = Task(plan=plan, feedback=said, status=Status.DONE)
    values = {"sprint": sprint, "id": id, "position": place, "status": "Done", "reason": ""}
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
