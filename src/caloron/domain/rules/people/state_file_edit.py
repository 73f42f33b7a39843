"""A state that somebody wrote into the sprint's file: what of it can be taken over."""

from __future__ import annotations

import msgspec

from caloron.domain.model.sprint import State
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task
from caloron.domain.reporting import progress_page
from caloron.domain.rules.evaluation import Decision, Evaluation

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
    evaluation = Evaluation(state, now)
    outcome: dict[str, str] = {}
    for name, wanted in content.statuses.items():
        task = evaluation.state.tasks.get(name)
        if task is None:
            outcome[name] = "no such task"
        elif wanted != task.status:
            outcome[name] = _take_over_one(evaluation, task, wanted)
    for name, task in evaluation.state.tasks.items():
        told = (content.interventions.get(name), content.agents.get(task.agent))
        changed = [
            count for count in told if count is not None and count != task.supervision.interventions
        ]
        if changed:
            task.supervision.interventions = changed[0]
            outcome.setdefault(name, f"interventions set to {changed[0]}")
    progress_page.report(evaluation)
    evaluation.set_steps()
    return Decision(evaluation.state, tuple(evaluation.actions), tuple(evaluation.moves)), outcome


def _take_over_one(evaluation: Evaluation, task: Task, wanted: str) -> str:
    old = task.status
    if wanted == Status.DONE:
        evaluation.complete(task, f"done by {_WHO}", "Marked as done by hand.")
    elif wanted == Status.CANCELLED and old is not Status.DONE:
        evaluation.cancel(task, f"cancelled by {_WHO}", closed_by_person=False)
    elif old is Status.ESCALATED and wanted in _RELEASED:
        evaluation.release(task, _WHO)
    else:
        return f"{old} → {wanted} cannot be done by hand"
    return f"{old} → {task.status}"
