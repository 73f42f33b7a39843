"""Sprints and tasks as data: each fact has one name, one type and one number in every command.

The views read a typed `State` and the rows of `reading.light_state` alike. Standard library only:
`status`, `why` and `history` import nothing heavier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from caloron.domain.reporting.waiting import (
    seconds_between,
    unfinished_outcome,
    verification_of,
)
from caloron.durations import utc
from caloron.slicing import to_slice

if TYPE_CHECKING:
    from caloron.domain.model.sprint import Sprint, State
    from caloron.domain.model.task import Task
    from caloron.ledger.legacy import LegacySprint


class SprintRef(TypedDict):
    """A sprint by its id and its number."""

    sprint_id: str
    number: int


class AgentProcess(SprintRef):
    """An agent that runs although no engine drives its sprint."""

    task: str
    role: str
    pid: int


class UnavailableProvider(TypedDict):
    framework: str
    what: str
    until: str


class TaskView(TypedDict):
    """A task; a time is in UTC, null is not known or not reached."""

    id: str
    title: str
    kind: str
    depends_on: list[str]
    status: str
    reason: str
    issue_number: int | None
    pr_number: int | None
    verification: str
    verify_log: str
    review_rounds: int
    #: How often its agent was started for it.
    cycle: int
    slice_it: bool
    interventions: int
    clarity: int | None
    assessment: str | None
    cost_usd: float
    tokens: int
    started_at: str | None
    completed_at: str | None


class TaskWithReason(TaskView):
    """A task, and why it waits; empty once it is done."""

    why: str


class SprintSummary(SprintRef):
    """A sprint in a list; null was not recorded by an older version."""

    goal: str
    #: As the ledger has it.
    phase: str
    #: As people see it: stopped without an engine; failed or discarded once it has ended.
    outcome: str
    exit_code: int | None
    failure: str
    started_at: str | None
    completed_at: str | None
    #: Until now, for a sprint that has not ended.
    duration_s: float
    total_tasks: int
    completed_tasks: int
    cost_usd: float | None
    #: It was imported from an older version.
    imported: bool


class SprintState(SprintSummary):
    """A sprint without its tasks."""

    baseline: str
    verify: str
    sandboxed: bool | None
    budget_usd: float
    estimated_cost_usd: float
    pause_reason: str
    unavailable: list[UnavailableProvider]
    #: Who declined the plan.
    declined: str
    #: The forge does not answer.
    outage: str
    orphaned_agents: list[AgentProcess]


class SprintView(SprintState):
    tasks: list[TaskView]


class Standing(TypedDict):
    """Facts about a sprint that its state does not have."""

    running: bool
    outage: str
    orphaned_agents: list[AgentProcess]


ALONE = Standing(running=False, outage="", orphaned_agents=[])


def sprint_summary(
    sprint: Sprint, done: int, total: int, now: float, *, running: bool, orphans: bool
) -> SprintSummary:
    """Return a sprint of which only the row was read."""
    outcome, code = unfinished_outcome(sprint.phase, running=running, orphans=orphans), None
    failure = sprint.planning.failure or ""
    if sprint.phase == "ended":
        from caloron.domain.model.status import exit_code_for

        code = exit_code_for(stopped=failure, done=done, total=total)
        outcome = "discarded" if sprint.discard.by else "failed" if code else "ended"
    began = sprint.settings.created_at
    return SprintSummary(
        sprint_id=sprint.id,
        number=sprint.number,
        goal=sprint.goal,
        phase=sprint.phase,
        outcome=outcome,
        exit_code=code,
        failure=failure,
        started_at=utc(began),
        completed_at=_utc(sprint.ended_at),
        duration_s=seconds_between(began, sprint.ended_at, now),
        total_tasks=total,
        completed_tasks=done,
        cost_usd=round(sprint.usage.spent.usd, 4),
        imported=False,
    )


def sprint_state(state: State, now: float, standing: Standing = ALONE) -> SprintState:
    """Return everything about a sprint except for its tasks."""
    sprint = state.sprint
    summary = sprint_summary(
        sprint,
        sum(task.status == "Done" for task in state.tasks.values()),
        len(state.tasks),
        now,
        running=standing["running"],
        orphans=bool(standing["orphaned_agents"]),
    )
    return SprintState(
        **summary,
        baseline=sprint.main_health.baseline,
        verify=sprint.main_health.verify_line,
        sandboxed=not sprint.settings.unsandboxed,
        budget_usd=sprint.settings.budget_usd,
        estimated_cost_usd=round(sprint.usage.spent.estimated_usd, 4),
        pause_reason=sprint.availability.pause_reason,
        unavailable=[
            UnavailableProvider(framework=name, what=provider.what, until=utc(provider.until))
            for name, provider in sprint.availability.providers.items()
            if provider.until > now
        ],
        declined=sprint.plan_declined,
        outage=standing["outage"],
        orphaned_agents=standing["orphaned_agents"],
    )


def sprint_view(state: State, now: float, standing: Standing = ALONE) -> SprintView:
    tasks = [task_view(task) for task in state.tasks.values()]
    return SprintView(**sprint_state(state, now, standing), tasks=tasks)


def task_view(task: Task) -> TaskView:
    feedback, spent = task.log.feedback, task.usage.spent
    return TaskView(
        id=task.id,
        title=task.plan.title,
        kind=task.plan.kind,
        depends_on=list(task.plan.depends_on),
        status=str(task.status),
        reason=task.reason,
        issue_number=task.links.issue,
        pr_number=task.links.pull,
        verification=verification_of(task),
        verify_log=task.merge.verified.log if task.merge.verified else "",
        review_rounds=len(task.review.reviewed),
        cycle=task.log.cycle,
        slice_it=to_slice(task.log.cycle),
        interventions=task.supervision.total,
        clarity=(feedback.task_clarity or None) if feedback else None,
        assessment=feedback.self_assessment if feedback else None,
        cost_usd=round(spent.usd, 4),
        tokens=spent.tokens_in + spent.tokens_out,
        started_at=_utc(task.times.started_at),
        completed_at=_utc(task.times.completed_at),
    )


def _utc(moment: float | None) -> str | None:
    return None if moment is None else utc(moment)


def imported_summary(sprint: LegacySprint) -> SprintSummary:
    """Return a sprint that an older version ran; it had no costs."""
    from caloron.domain.compat.legacy_sprints import summary_of

    summary = summary_of(sprint.record)
    code = summary.exit_code
    return SprintSummary(
        sprint_id=sprint.id,
        number=sprint.number,
        goal=summary.goal,
        phase="ended",
        outcome="failed" if code else "ended",
        exit_code=code,
        failure=f"it ended with exit code {code}" if code else "",
        started_at=_began(summary.completed_at, summary.duration_s),
        completed_at=summary.completed_at or None,
        duration_s=summary.duration_s,
        total_tasks=summary.total,
        completed_tasks=summary.completed,
        cost_usd=None,
        imported=True,
    )


def imported_view(sprint: LegacySprint) -> SprintView:
    return SprintView(
        **imported_summary(sprint),
        baseline="",
        verify="",
        sandboxed=None,
        budget_usd=0.0,
        estimated_cost_usd=0.0,
        pause_reason="",
        unavailable=[],
        declined="",
        outage="",
        orphaned_agents=[],
        tasks=[],
    )


def _began(completed_at: str, duration_s: float) -> str | None:
    from datetime import datetime, timedelta

    try:
        ended = datetime.fromisoformat(completed_at)
        return (ended - timedelta(seconds=duration_s)).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        return None
