"""A visit to the sprint of an id, for whoever has no terminal: the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from caloron.domain.actions import Moved
from caloron.domain.sprint import State
from caloron.engine.engine import Answer
from caloron.engine.session import held
from caloron.engine.visit import Visit
from caloron.errors import ForgeUnavailable, HeldByAnother, NotFound, UsageError
from caloron.ledger.locate import ProjectPaths, project_path, require_id
from caloron.ledger.projections import kv_path
from caloron.ledger.projects import load_project


class _Told:
    """Looks on for somebody who reads lines."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.told = tell

    def moved(self, state: State, moves: tuple[Moved, ...]) -> None:
        for move in moves:
            self.told(f"{state.sprint.id}: {move.task}: {move.old} → {move.new}")

    def seen(self, state: State) -> None:
        """A state is nothing new."""

    def approves(self, state: State, meanwhile: Callable[[], bool]) -> Answer:
        return None


def project_of(sprint: Any) -> ProjectPaths:
    """The project that a sprint belongs to, by the sprint's id."""
    if not isinstance(sprint, str):
        raise UsageError("`sprint_id` is no text")
    name = require_id(sprint, "sprint").rpartition("-")[0]
    paths = ProjectPaths(name, project_path(name)) if name else None
    if paths is None or not paths.ledger.exists():
        raise NotFound(f"there is no sprint {sprint}", hint="caloron history")
    return paths


def visit_by_id(sprint: Any, tell: Callable[[str], None], limit_s: float) -> dict[str, Any]:
    """What the tick's graph answers, after what it decided was carried out."""
    paths = project_of(sprint)
    told = {"persisted_path": str(kv_path(sprint)), "skipped": False, "ended": False}
    try:
        with held(load_project(paths.name)) as session:
            visited = Visit(session.engine(sprint, _Told(tell)), limit_s=limit_s).make()
    except HeldByAnother:
        return told | {"actions_taken": [], "errors": [], "skipped": True}
    except ForgeUnavailable as error:
        return told | {"actions_taken": [], "errors": [str(error)]}
    return told | {
        "actions_taken": list(visited.actions_taken),
        "errors": [visited.outage] if visited.outage else [],
        "ended": visited.state.sprint.phase == "ended",
    }
