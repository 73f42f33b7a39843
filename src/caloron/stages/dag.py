"""Stages about the plan's tasks: evaluate, count, validate, list, and turn decisions into rows."""

from __future__ import annotations

import msgspec

from caloron.domain.actions import Action, CancelWork, HoldWork, RetryEffect, StartWork
from caloron.domain.evaluate import Decision, evaluate
from caloron.domain.plan import PlannedTask, PlanProblem, parse_plan
from caloron.domain.sprint import State
from caloron.domain.status import Status
from caloron.stages.sprint import EvaluateInput, ExecuteInput


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    complete: bool
    total: int
    done: int
    blocked: int
    cancelled: int


class Validity(msgspec.Struct, frozen=True, kw_only=True):
    valid: bool
    errors: tuple[str, ...]
    tasks: tuple[PlannedTask, ...] = ()


class ReadyTask(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    title: str
    agent_id: str
    issue_number: int | None


def dag_evaluate(given: EvaluateInput) -> Decision:
    """The next state and the actions that follow from what was observed."""
    return evaluate(given.state, given.facts, given.now)


def dag_is_complete(state: State) -> Completion:
    """How far the sprint is; complete means that no task can move without a person."""
    statuses = [task.status for task in state.tasks.values()]
    done = statuses.count(Status.DONE)
    blocked = statuses.count(Status.BLOCKED) + statuses.count(Status.ESCALATED)
    cancelled = statuses.count(Status.CANCELLED)
    return Completion(
        complete=bool(statuses) and done + blocked + cancelled == len(statuses),
        total=len(statuses),
        done=done,
        blocked=blocked,
        cancelled=cancelled,
    )


def dag_validate(plan: object, frameworks: tuple[str, ...] = ()) -> Validity:
    """Everything that is wrong with a plan, before any side effect."""
    try:
        return Validity(valid=True, errors=(), tasks=parse_plan(plan, frameworks=frameworks))
    except PlanProblem as problem:
        return Validity(valid=False, errors=problem.errors)


def unblocked_tasks(state: State) -> tuple[ReadyTask, ...]:
    """The tasks that could start now."""
    return tuple(
        ReadyTask(
            task_id=task.id, title=task.plan.title, agent_id=task.agent, issue_number=task.issue
        )
        for task in state.tasks.values()
        if task.status is Status.READY
    )


def execute_actions(given: ExecuteInput) -> tuple[tuple[Action, ...], tuple[str, ...]]:
    """Turn decisions into rows for the journal and the queue; nothing is done here."""
    rows = (*given.dag_actions, *given.supervisor_actions)
    return rows, tuple(_told(row) for row in rows)


def _told(action: Action) -> str:
    match action:
        case StartWork():
            return f"start:{action.work.item}"
        case HoldWork():
            return f"hold:{action.item}"
        case CancelWork():
            return f"cancel:{action.item}"
        case RetryEffect():
            return f"retry:{action.key}"
        case _:
            return action.key
