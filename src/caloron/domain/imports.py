"""A state that somebody wrote into the sprint's file: what of it can be taken over."""

from __future__ import annotations

import msgspec

from caloron.domain import progress
from caloron.domain.sprint import State, Task
from caloron.domain.status import Status
from caloron.domain.turn import Decision, Turn

_WHO = "an edit of the sprint's file"
_RELEASED = (Status.PENDING, Status.READY, Status.IN_PROGRESS, Status.IN_REVIEW)


class Import(msgspec.Struct, frozen=True, kw_only=True):
    """What a foreign file says about each task."""

    statuses: dict[str, str]
    #: Interventions as the tasks tell them, and as they are counted by agent.
    interventions: dict[str, int]
    agents: dict[str, int] = msgspec.field(default_factory=dict)


def take_over(state: State, content: Import, now: float) -> tuple[Decision, dict[str, str]]:
    """Carry out the edits that make sense; the second value says what became of each."""
    turn = Turn(state, now)
    outcome: dict[str, str] = {}
    for name, wanted in content.statuses.items():
        task = turn.state.tasks.get(name)
        if task is None:
            outcome[name] = "no such task"
        elif wanted != task.status:
            outcome[name] = _take_over_one(turn, task, wanted)
    for name, task in turn.state.tasks.items():
        told = (content.interventions.get(name), content.agents.get(task.agent))
        changed = [count for count in told if count is not None and count != task.interventions]
        if changed:
            task.interventions = changed[0]
            outcome.setdefault(name, f"interventions set to {changed[0]}")
    progress.report(turn)
    return Decision(turn.state, tuple(turn.actions), tuple(turn.moves)), outcome


def _take_over_one(turn: Turn, task: Task, wanted: str) -> str:
    old = task.status
    if wanted == Status.DONE:
        turn.complete(task, f"done by {_WHO}", "Marked as done by hand.")
    elif wanted == Status.CANCELLED and old is not Status.DONE:
        turn.cancel(task, f"cancelled by {_WHO}", closed_by_person=False)
    elif old is Status.ESCALATED and wanted in _RELEASED:
        turn.release(task, _WHO)
    else:
        return f"{old} → {wanted} cannot be done by hand"
    return f"{old} → {task.status}"
