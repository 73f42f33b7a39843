"""Edits of the sprint's state file by people, as far as the rules allow them."""

from __future__ import annotations

import msgspec

from caloron.domain.model.sprint import State
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task
from caloron.domain.reporting import progress_page
from caloron.domain.rules.evaluation import Decision, Evaluation

_WHO = "an edit of the sprint's file"
_RELEASED = (Status.PENDING, Status.READY, Status.IN_PROGRESS, Status.IN_REVIEW)


class FileEdit(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an edited file, by task."""

    statuses: dict[str, str]
    #: Interventions as the tasks in the file show them, and as its list of agents does.
    interventions: dict[str, int]
    agents: dict[str, int] = msgspec.field(default_factory=dict)


def apply_file_edit(state: State, edit: FileEdit, now: float) -> tuple[Decision, dict[str, str]]:
    """Carry out the edits that make sense; the second value describes the result of each."""
    evaluation = Evaluation(state, now)
    results: dict[str, str] = {}
    for name, status in edit.statuses.items():
        task = evaluation.state.tasks.get(name)
        if task is None:
            results[name] = "no such task"
        elif status != task.status:
            results[name] = _set_status(evaluation, task, status)
    for name, task in evaluation.state.tasks.items():
        counts = (edit.interventions.get(name), edit.agents.get(task.agent))
        changed = [n for n in counts if n is not None and n != task.supervision.interventions]
        if changed:
            task.supervision.interventions = changed[0]
            results.setdefault(name, f"interventions set to {changed[0]}")
    progress_page.report(evaluation)
    return evaluation.decision(), results


def _set_status(evaluation: Evaluation, task: Task, status: str) -> str:
    old = task.status
    if status == Status.DONE:
        evaluation.complete(task, f"done by {_WHO}", "Marked as done by hand.")
    elif status == Status.CANCELLED and old is not Status.DONE:
        evaluation.cancel(task, f"cancelled by {_WHO}", closed_by_person=False)
    elif old is Status.ESCALATED and status in _RELEASED:
        evaluation.release(task, _WHO)
    else:
        return f"{old} → {status} cannot be done by hand"
    return f"{old} → {task.status}"
