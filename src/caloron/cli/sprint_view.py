"""A sprint and its tasks as data: every field has one definition, and commands select fields."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from caloron.domain.model.sprint import State
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task
from caloron.domain.reporting import forge_texts
from caloron.domain.reporting.kpis import Run, sprint_time_s, verification_of
from caloron.ledger.state_file import iso

_SPRINT: dict[str, Callable[[State], Any]] = {
    "sprint_id": lambda state: state.sprint.id,
    "number": lambda state: state.sprint.number,
    "goal": lambda state: state.sprint.goal,
    "phase": lambda state: state.sprint.phase,
    "stopped": lambda state: state.sprint.planning.failure,
    "started_at": lambda state: iso(state.sprint.settings.created_at),
    "completed_at": lambda state: iso(state.sprint.ended_at),
    "duration_s": lambda state: sprint_time_s(state.sprint, time.time()),
    "baseline": lambda state: state.sprint.main_health.baseline,
    "verify": lambda state: state.sprint.main_health.verify_line,
    "sandboxed": lambda state: not state.sprint.settings.unsandboxed,
    "budget_usd": lambda state: state.sprint.settings.budget_usd,
    "cost_usd": lambda state: round(state.sprint.usage.spent.usd, 4),
    "estimated_cost_usd": lambda state: round(state.sprint.usage.spent.estimated_usd, 4),
    "total_tasks": lambda state: len(state.tasks),
    "completed_tasks": lambda state: sum(t.status is Status.DONE for t in state.tasks.values()),
}
_TASK: dict[str, Callable[[Task], Any]] = {
    "id": lambda task: task.id,
    "title": lambda task: task.plan.title,
    "kind": lambda task: task.plan.kind,
    "depends_on": lambda task: list(task.plan.depends_on),
    "status": lambda task: str(task.status),
    "reason": lambda task: task.reason,
    "issue_number": lambda task: task.links.issue,
    "pr_number": lambda task: task.links.pull,
    "verification": verification_of,
    "tests": verification_of,
    "verify_log": lambda task: task.merge.verified.log if task.merge.verified else "",
    "verify_summary": lambda task: task.merge.verified.summary if task.merge.verified else "",
    "summaries": lambda task: list(task.change.summaries),
    "criteria": lambda task: [
        {
            "text": text,
            "met": bool(answer and answer.met),
            "reason": answer.reason if answer else "",
        }
        for text, answer in forge_texts.criteria_of(task)
    ],
    "review_rounds": lambda task: len(task.review.reviewed),
    "clarity": lambda task: (task.log.feedback and task.log.feedback.task_clarity) or None,
    "assessment": lambda task: task.log.feedback.self_assessment if task.log.feedback else None,
    "cost_usd": lambda task: round(task.usage.spent.usd, 4),
    "tokens": lambda task: task.usage.spent.tokens,
    "interventions": lambda task: task.supervision.total,
    "started_at": lambda task: iso(task.times.started_at),
    "completed_at": lambda task: iso(task.times.completed_at),
}


def sprint_data(state: State, *fields: str) -> dict[str, Any]:
    """These fields of a sprint."""
    return {name: _SPRINT[name](state) for name in fields}


def task_data(task: Task, *fields: str, **more: Any) -> dict[str, Any]:
    """These fields of a task, in this order; `more` has those that need more than the task."""
    return {name: more[name] if name in more else _TASK[name](task) for name in fields}


def agent_runs(runs: Sequence[Run]) -> list[Run]:
    """The runs of agents, without verifications."""
    return [run for run in runs if run.role != "verify"]
