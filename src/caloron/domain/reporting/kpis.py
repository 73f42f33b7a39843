"""The results of a sprint in numbers, from its state and the runs in the event log.

`None` means that there is nothing to take a mean of; a number is never made up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from caloron.domain.model.roles import ANALYST, PLANNER, REVIEWER, Role
from caloron.domain.model.sprint import State
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task
from caloron.domain.reporting.waiting import sprint_time_s, verification_of
from caloron.durations import span

_DAY = 86_400.0
#: A task with this many reviews went in a loop.
LOOP = 3
_CLEAR = 7

#: Why a run was interrupted without a failure.
STOPPED, NOT_NEEDED = "the sprint was stopped", "not needed any more"

End = Literal["done", "failed", "interrupted", "running"]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One process of an agent, or of a verification, as the event log has it."""

    item: str
    role: Role
    #: Empty for the planner and for the verification of main.
    task: str = ""
    attempt: int = 1
    #: The claim, which names the folder of its files; 0: the event log does not have it.
    token: int = 0
    started_at: float = 0.0
    seconds: float = 0.0
    end: End = "done"
    exit_code: int = 0
    #: The failure, in one line.
    problem: str = ""
    framework: str = ""
    model: str = ""
    usd: float = 0.0
    tokens: int = 0
    tools: dict[str, int] = msgspec.field(default_factory=dict)


AgentRole = Literal["planner", "developer", "checker", "reviewer", "analyst"]


class AgentKpis(msgspec.Struct, frozen=True, kw_only=True):
    """One agent in one sprint: a task's own, the reviewer, the planner, or the analyst."""

    agent: str
    role: AgentRole
    runs: int = 0
    failed_runs: int = 0
    tasks_completed: int = 0
    tasks_failed: int = 0
    clarity: float | None = None
    cost_usd: float = 0.0
    tokens: int = 0
    time_s: float = 0.0
    review_cycles: int = 0
    interventions: int = 0


class RoleKpis(msgspec.Struct, frozen=True, kw_only=True):
    """All agents of one role in one sprint; None: there is nothing to take a mean of."""

    role: AgentRole
    agents: int = 0
    tasks_completed: int = 0
    tasks_failed: int = 0
    avg_clarity: float | None = None
    avg_tokens: float | None = None
    avg_time_min: float | None = None
    avg_review_cycles: float | None = None
    avg_cost_usd: float | None = None
    interventions: int = 0


class Kpis(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a sprint."""

    total_tasks: int = 0
    completed_tasks: int = 0
    completion_rate: float = 0.0
    failure_count: int = 0
    escalated_count: int = 0
    blocked_count: int = 0
    cancelled_count: int = 0
    #: From its beginning to its end, with all waiting for people and providers.
    sprint_time_s: float = 0.0
    #: The part of it in which an agent or a verification ran.
    work_time_s: float = 0.0
    sprint_days: float = 0.0
    tasks_per_day: float = 0.0
    #: Steps of the supervisor: probes, restarts and escalations of silent agents.
    total_interventions: int = 0
    #: Acts of people: reviews, commands, pushes, merges, edits, issues closed or opened again.
    human_acts: int = 0
    avg_interventions: float = 0.0
    #: The same number under the name of the original Caloron.
    interventions_per_task: float = 0.0
    clean_task_pct: float = 0.0
    feedback_count: int = 0
    #: The number of tasks whose agent rated their clarity.
    clarity_count: int = 0
    avg_clarity: float | None = None
    high_clarity_pct: float | None = None
    avg_review_cycles: float | None = None
    review_loop_count: int = 0
    fix_rounds: int = 0
    conflict_count: int = 0
    failed_runs: int = 0
    interrupted_runs: int = 0
    verify_runs: int = 0
    verify_failures: int = 0
    #: Merged results that were verified and green.
    tests_passing: int = 0
    #: Merged although red, because main was red and the user allowed that.
    red_merges: int = 0
    cost_usd: float = 0.0
    estimated_cost_usd: float = 0.0
    total_tokens: int = 0
    avg_tokens_per_task: float | None = None
    avg_cost_per_task: float | None = None
    total_time_min: float = 0.0
    avg_time_per_task: float | None = None


def compute_kpis(state: State, runs: Sequence[Run], now: float) -> Kpis:
    """Return the numbers of one sprint; a sprint that goes on ends `now`."""
    sprint, tasks = state.sprint, list(state.tasks.values())
    total, done = len(tasks), sum(t.status is Status.DONE for t in tasks)
    seconds = sprint_time_s(sprint, now)
    steps = sum(t.supervision.total for t in tasks)
    clarities = [
        t.log.feedback.task_clarity for t in tasks if t.log.feedback and t.log.feedback.task_clarity
    ]
    reviewed = [len(t.review.reviewed) for t in tasks if t.review.reviewed]
    agents = agent_runs(runs)
    checks = [run for run in runs if run.role == "verify" and run.task]
    finished = [t for t in tasks if t.status is Status.DONE]
    time_s = {t.id: sum(r.seconds for r in agents if r.task == t.id) for t in finished}
    return Kpis(
        total_tasks=total,
        completed_tasks=done,
        completion_rate=_share(done, total, 3),
        failure_count=_count(tasks, Status.ESCALATED),
        escalated_count=_count(tasks, Status.ESCALATED, Status.BLOCKED),
        blocked_count=_count(tasks, Status.BLOCKED),
        cancelled_count=_count(tasks, Status.CANCELLED),
        sprint_time_s=seconds,
        work_time_s=work_time_s(run for run in runs if run.role != "retro"),
        sprint_days=round(seconds / _DAY, 1),
        # From the exact time: a sprint of minutes would be 0.0 days.
        tasks_per_day=_share(done, seconds / _DAY, 1),
        total_interventions=steps,
        human_acts=sum(len(t.conversation.acts) for t in tasks),
        avg_interventions=_share(steps, total, 2),
        interventions_per_task=_share(steps, total, 2),
        clean_task_pct=_percent(
            sum(not t.supervision.total and not t.conversation.acts for t in finished), total
        )
        or 0.0,
        feedback_count=sum(t.log.feedback is not None for t in tasks),
        clarity_count=len(clarities),
        avg_clarity=_mean(clarities, 1),
        high_clarity_pct=_percent(sum(c >= _CLEAR for c in clarities), len(clarities)),
        avg_review_cycles=_mean(reviewed, 2),
        review_loop_count=sum(n >= LOOP for n in reviewed),
        fix_rounds=len({r.item for r in runs if r.role == "fix"}),
        conflict_count=len({r.item for r in runs if r.role == "resolve"}),
        failed_runs=sum(r.end == "failed" for r in agents),
        interrupted_runs=sum(r.end == "interrupted" for r in agents),
        verify_runs=len(checks),
        verify_failures=sum(r.end == "failed" for r in checks),
        tests_passing=sum(verification_of(t) == "green" for t in finished),
        red_merges=sum(verification_of(t) == "red, allowed" for t in finished),
        cost_usd=round(sprint.usage.spent.usd, 4),
        estimated_cost_usd=round(sprint.usage.spent.estimated_usd, 4),
        total_tokens=sprint.usage.spent.tokens,
        avg_tokens_per_task=_mean_known([t.usage.spent.tokens for t in finished], 0),
        avg_cost_per_task=_mean_known([t.usage.spent.usd for t in finished], 4),
        total_time_min=round(sum(r.seconds for r in agents) / 60, 1),
        avg_time_per_task=_mean([s / 60 for s in time_s.values()], 2),
    )


def agent_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the runs of agents, without verifications."""
    return [run for run in runs if run.role != "verify"]


def work_time_s(runs: Iterable[Run]) -> float:
    """Return how long at least one of these runs was at work; parallel runs count once."""
    total = until = 0.0
    for began, ended in sorted((run.started_at, run.started_at + run.seconds) for run in runs):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return round(total, 1)


def agent_kpis(state: State, runs: Sequence[Run]) -> tuple[AgentKpis, ...]:
    """Return the work, time and cost of each agent; the costs add up to that of the sprint."""
    tasks, usage = list(state.tasks.values()), state.sprint.usage
    spent, retro = usage.spent, usage.retro_spent
    by_role = {
        role: [run for run in runs if run.role == role] for role in ("po", "retro", "review")
    }
    reviews = by_role["review"]
    reviewed = {run.task for run in reviews}
    planner = _agent(
        PLANNER,
        "planner",
        by_role["po"],
        usd=spent.usd - retro.usd - sum(t.usage.spent.usd for t in tasks),
        tokens=spent.tokens - retro.tokens - sum(t.usage.spent.tokens for t in tasks),
    )
    reviewer = _agent(
        REVIEWER,
        "reviewer",
        reviews,
        usd=sum(run.usd for run in reviews),
        tokens=sum(run.tokens for run in reviews),
        review_cycles=sum(len(t.review.reviewed) for t in tasks if t.id in reviewed),
    )
    analyst = _agent(ANALYST, "analyst", by_role["retro"], usd=retro.usd, tokens=retro.tokens)
    rows = (planner, *(_author(task, runs) for task in tasks), reviewer, analyst)
    return tuple(row for row in rows if row.runs or row.cost_usd)


def _author(task: Task, runs: Sequence[Run]) -> AgentKpis:
    """Return the task's own agent: the cost of the task without its reviews."""
    own = [run for run in runs if run.task == task.id]
    reviews = [run for run in own if run.role == "review"]
    clarity = task.log.feedback.task_clarity if task.log.feedback else 0
    return _agent(
        task.agent,
        "checker" if task.plan.kind == "check" else "developer",
        [run for run in own if run.role not in ("review", "verify")],
        usd=task.usage.spent.usd - sum(run.usd for run in reviews),
        tokens=task.usage.spent.tokens - sum(run.tokens for run in reviews),
        tasks_completed=int(task.status is Status.DONE),
        tasks_failed=int(task.status is Status.ESCALATED),
        clarity=float(clarity) if clarity else None,
        review_cycles=len(task.review.reviewed),
        interventions=task.supervision.total,
    )


def _agent(
    agent: str, role: AgentRole, runs: Sequence[Run], *, usd: float, tokens: int, **more: Any
) -> AgentKpis:
    return AgentKpis(
        agent=agent,
        role=role,
        runs=len(runs),
        failed_runs=sum(run.end == "failed" for run in runs),
        time_s=round(sum(run.seconds for run in runs), 1),
        cost_usd=max(0.0, round(usd, 4)),
        tokens=max(0, tokens),
        **more,
    )


def role_kpis(agents: Sequence[AgentKpis]) -> tuple[RoleKpis, ...]:
    """Sum up the agents of each role."""
    roles = dict.fromkeys(agent.role for agent in agents)
    return tuple(_of_role(role, [a for a in agents if a.role == role]) for role in roles)


def _of_role(role: AgentRole, agents: Sequence[AgentKpis]) -> RoleKpis:
    return RoleKpis(
        role=role,
        agents=len(agents),
        tasks_completed=sum(a.tasks_completed for a in agents),
        tasks_failed=sum(a.tasks_failed for a in agents),
        avg_clarity=_mean([a.clarity for a in agents if a.clarity is not None], 1),
        avg_tokens=_mean_known([a.tokens for a in agents], 0),
        avg_time_min=_mean([a.time_s / 60 for a in agents], 2),
        avg_review_cycles=_mean([a.review_cycles for a in agents if a.review_cycles], 2),
        avg_cost_usd=_mean_known([a.cost_usd for a in agents], 4),
        interventions=sum(a.interventions for a in agents),
    )


def tools_of(state: State, runs: Sequence[Run]) -> dict[str, int]:
    """Count the uses of each tool, as frameworks count them, else as the agents say."""
    used: Counter[str] = Counter()
    for run in runs:
        used.update(run.tools)
    counted = {run.task for run in runs if run.tools}
    for task in state.tasks.values():
        if task.log.feedback and task.id not in counted:
            used.update(task.log.feedback.tools_used)
    return dict(sorted(used.items(), key=lambda entry: (-entry[1], entry[0])))


def blockers_of(state: State) -> tuple[str, ...]:
    """Return the blockers in the agents' feedback, and the reasons of escalations."""
    tasks, failure = state.tasks.values(), state.sprint.planning.failure
    blockers = [b for t in tasks if t.log.feedback for b in t.log.feedback.blockers]
    blockers += [f"{t.id}: {t.reason}" for t in tasks if t.status is Status.ESCALATED]
    blockers += [failure] if failure else []
    return tuple(dict.fromkeys(" ".join(text.split()) for text in blockers))


def _count(tasks: Iterable[Task], *statuses: Status) -> int:
    return sum(task.status in statuses for task in tasks)


def _share(part: float, whole: float, digits: int) -> float:
    return round(part / whole, digits) if whole else 0.0


def _percent(part: float, whole: float) -> float | None:
    return round(100 * part / whole, 1) if whole else None


def _mean(values: Sequence[float], digits: int) -> float | None:
    return round(sum(values) / len(values), digits) if values else None


def _mean_known(values: Sequence[float], digits: int) -> float | None:
    """Return the mean of costs; an agent that reported none has 0, which is left out."""
    return _mean([value for value in values if value], digits)


#: A change of at most this share is no change.
DEAD_BAND = 0.05
_EARLIER = 10


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """A number and its mean in earlier sprints."""

    metric: str
    now: float
    before: float
    #: The number of earlier sprints that have the number.
    n: int
    direction: Literal["improved", "degraded", "stable"]


class _Metric(NamedTuple):
    label: str
    form: Callable[[float], str]
    more_is_better: bool = False


#: The numbers that trends compare, as people read them.
_METRICS: dict[str, _Metric] = {
    "completion_rate": _Metric("tasks done", lambda n: f"{100 * n:.0f} %", more_is_better=True),
    "clean_task_pct": _Metric(
        "tasks without the supervisor or people", lambda n: f"{n:.0f} %", more_is_better=True
    ),
    "avg_clarity": _Metric("clarity", lambda n: f"{n:.1f}/10", more_is_better=True),
    "avg_review_cycles": _Metric("reviews per task", lambda n: f"{n:.2f}"),
    "avg_interventions": _Metric("supervisor steps per task", lambda n: f"{n:.2f}"),
    "avg_tokens_per_task": _Metric("tokens per task", lambda n: f"{n:.0f}"),
    "avg_cost_per_task": _Metric("cost per task", lambda n: f"${n:.2f}"),
    "avg_time_per_task": _Metric("time of agents per task", lambda n: span(60 * n)),
}


def label(metric: str) -> str:
    """Return the name of a number for people."""
    return _METRICS[metric].label


def worded(metric: str, value: float) -> str:
    """Return a value of a number with its unit."""
    return _METRICS[metric].form(value)


def trends(now: Kpis, earlier: Iterable[Kpis]) -> tuple[Trend, ...]:
    """Compare each number with its mean in earlier sprints that have it."""
    past = [kpis for kpis in earlier if kpis.total_tasks][-_EARLIER:]
    result = []
    for name, metric in _METRICS.items() if now.total_tasks else ():
        value: float | None = getattr(now, name)
        before = [known for kpis in past if (known := getattr(kpis, name)) is not None]
        if value is None or not before:
            continue
        mean = sum(before) / len(before)
        direction: Literal["improved", "degraded", "stable"] = "stable"
        if abs(value - mean) > DEAD_BAND * abs(mean) + 1e-9:
            direction = "improved" if (value > mean) is metric.more_is_better else "degraded"
        result.append(
            Trend(metric=name, now=value, before=round(mean, 4), n=len(before), direction=direction)
        )
    return tuple(result)
