"""A note that a plan is being made: whoever is killed meanwhile is told how to go on."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from caloron.cli.begin import last_sprint_number
from caloron.errors import HeldByAnother
from caloron.ledger.locate import ProjectPaths
from caloron.ledger.projects import Project
from caloron.store import log
from caloron.store.files import write_atomic
from caloron.store.lock import single_instance

if TYPE_CHECKING:
    from caloron.engine.graph_planning import Planning


@contextmanager
def noted(project: Project, number: int, goal: str, graph: str) -> Iterator[None]:
    """Leaves a note for as long as the block runs, and for good if it is killed in it.

    A plan that is made stays noted until it is recorded; one that failed was told about. Nobody
    pays for a second plan of the same sprint: whoever comes while one is made is refused.
    """
    if not project.path.is_dir():
        yield
        return
    file = _file(project)
    command = shlex.join(["caloron", "sprint", goal, "--graph", graph])
    with single_instance(file.with_suffix(".lock"), f"planning a sprint of {project.name}"):
        write_atomic(file, json.dumps({"number": number, "command": command}).encode())
        try:
            yield
        except HeldByAnother:
            # It is the other one's note too.
            raise
        except Exception:
            file.unlink(missing_ok=True)
            raise


def plan_is_recorded(project: Project, planning: Planning) -> None:
    """The sprint has its plan: neither the note nor the run that made it is needed any more."""
    from caloron.graph.errors import GraphError

    _file(project).unlink(missing_ok=True)
    with log.ignored(GraphError, message="cannot remove a graph run", run=planning.run_id):
        # What stays there is never looked at again: the next sprint has another number.
        planning.at.forget(planning.run_id)


def planning_cut_short(project: Project) -> str:
    """How to go on with a plan that somebody was killed over; empty if there is none."""
    try:
        note = json.loads(_file(project).read_bytes())
        number, command = int(note["number"]), str(note["command"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("cannot read the note of an unfinished plan", error=error)
        number, command = 0, "caloron sprint …"
    if 0 < number <= last_sprint_number(project):
        # It was recorded, and whoever did that was killed before it could take the note away.
        return ""
    return (
        f"a plan was being made and is not finished; go on with it by the same command: {command}"
    )


def _file(project: ProjectPaths) -> Path:
    return project.path / "planning.json"
