"""What a sprint came to, in numbers: from its state and the runs that the diary tells of.

`None` means that there is nothing to take a mean of; a number is never made up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypedDict

import msgspec

from caloron.domain.model.roles import ANALYST, PLANNER, REVIEWER, Role
from caloron.domain.model.sprint import Sprint, State
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task
from caloron.durations import span

_DAY = 86_400.0
#: A task with this many reviews went in a loop.
LOOP = 3
CLEAR = 7

#: Why a run was cut short that nothing is wrong with.
STOPPED, NOT_NEEDED = "the sprint was stopped", "not needed any more"

End = Literal["done", "failed", "interrupted", "running"]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One process of an agent, or of a verification, as the diary tells of it."""

    item: str
    role: Role
    #: Empty for the planner and for the verification of main.
    task: str = ""
    attempt: int = 1
    #: The claim, which names the folder of its files; 0: the diary does not say.
    token: int = 0
    started_at: float = 0.0
    seconds: float = 0.0
    end: End = "done"
    exit_code: int = 0
    #: How it failed, in one line.
    problem: str = ""
    framework: str = ""
    model: str = ""
    usd: float = 0.0
    tokens: int = 0
    tools: dict[str, int] = msgspec.field(default_factory=dict)


AgentRole = Literal["planner", "developer", "checker", "reviewer", "analyst"]


class AgentKpis(msgspec.Struct, frozen=True, kw_only=True):
    """One agent in one sprint: a task's own, the reviewer, the planner, or who looks back."""

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
    """All agents of one role in one sprint; a mean that nothing is known for is None."""

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
    #: What people did: reviews, commands, pushes, merges, edits, issues closed or opened again.
    human_acts: int = 0
    avg_interventions: float = 0.0
    #: The same number by the name that the original Caloron gives it.
    interventions_per_task: float = 0.0
    clean_task_pct: float = 0.0
    feedback_count: int = 0
    #: Of how many tasks the agent said how clear they were.
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
    """The numbers of one sprint; `now` stands for the end of one that goes on."""
    sprint, tasks = state.sprint, list(state.tasks.values())
    total, done = len(tasks), sum(t.status is Status.DONE for t in tasks)
    seconds = sprint_time_s(sprint, now)
    steps = sum(t.supervision.total for t in tasks)
    clarities = [
        t.log.feedback.task_clarity for t in tasks if t.log.feedback and t.log.feedback.task_clarity
    ]
    reviewed = [len(t.review.reviewed) for t in tasks if t.review.reviewed]
    agents = [run for run in runs if run.role != "verify"]
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
        tasks_per_day=_per_day(done, seconds),
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
        high_clarity_pct=_percent(sum(c >= CLEAR for c in clarities), len(clarities)),
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
        total_tokens=sprint.usage.spent.tokens_in + sprint.usage.spent.tokens_out,
        avg_tokens_per_task=_mean_told([_tokens(t) for t in finished], 0),
        avg_cost_per_task=_mean_told([t.usage.spent.usd for t in finished], 4),
        total_time_min=round(sum(r.seconds for r in agents) / 60, 1),
        avg_time_per_task=_mean([s / 60 for s in time_s.values()], 2),
    )


def sprint_time_s(sprint: Sprint, now: float) -> float:
    """From the beginning of a sprint to its end; `now` stands for the end of one that goes on."""
    return round(max(0.0, (sprint.ended_at or now) - sprint.settings.created_at), 1)


def work_time_s(runs: Iterable[Run]) -> float:
    """How long at least one of these runs was at work; runs side by side count once."""
    total = until = 0.0
    for began, ended in sorted((run.started_at, run.started_at + run.seconds) for run in runs):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return round(total, 1)


def agent_kpis(state: State, runs: Sequence[Run]) -> tuple[AgentKpis, ...]:
    """Who did what, for how long and for how much; the shares add up to what the sprint spent."""
    reviews = [run for run in runs if run.role == "review"]
    rows = [_planner(state, runs), *(_author(t, runs) for t in state.tasks.values())]
    if reviews:
        tasks = {run.task for run in reviews}
        rows.append(
            AgentKpis(
                agent=REVIEWER,
                role="reviewer",
                review_cycles=sum(
                    len(t.review.reviewed) for t in state.tasks.values() if t.id in tasks
                ),
                cost_usd=round(sum(r.usd for r in reviews), 4),
                tokens=sum(r.tokens for r in reviews),
                **_of_runs(reviews),
            )
        )
    rows.append(_analyst(state, runs))
    return tuple(row for row in rows if row.runs or row.cost_usd)


def role_kpis(agents: Sequence[AgentKpis]) -> tuple[RoleKpis, ...]:
    """The agents of each role together."""
    roles = dict.fromkeys(agent.role for agent in agents)
    return tuple(_of_role(role, [a for a in agents if a.role == role]) for role in roles)


def _of_role(role: AgentRole, agents: Sequence[AgentKpis]) -> RoleKpis:
    return RoleKpis(
        role=role,
        agents=len(agents),
        tasks_completed=sum(a.tasks_completed for a in agents),
        tasks_failed=sum(a.tasks_failed for a in agents),
        avg_clarity=_mean([a.clarity for a in agents if a.clarity is not None], 1),
        avg_tokens=_mean_told([a.tokens for a in agents], 0),
        avg_time_min=_mean([a.time_s / 60 for a in agents], 2),
        avg_review_cycles=_mean([a.review_cycles for a in agents if a.review_cycles], 2),
        avg_cost_usd=_mean_told([a.cost_usd for a in agents], 4),
        interventions=sum(a.interventions for a in agents),
    )


def _analyst(state: State, runs: Sequence[Run]) -> AgentKpis:
    spent = state.sprint.usage.retro_spent
    return AgentKpis(
        agent=ANALYST,
        role="analyst",
        cost_usd=round(spent.usd, 4),
        tokens=spent.tokens_in + spent.tokens_out,
        **_of_runs([run for run in runs if run.role == "retro"]),
    )


def _planner(state: State, runs: Sequence[Run]) -> AgentKpis:
    tasks, spent, retro = (
        state.tasks.values(),
        state.sprint.usage.spent,
        state.sprint.usage.retro_spent,
    )
    usd = spent.usd - retro.usd - sum(t.usage.spent.usd for t in tasks)
    others = retro.tokens_in + retro.tokens_out + sum(_tokens(t) for t in tasks)
    tokens = spent.tokens_in + spent.tokens_out - others
    own = [run for run in runs if run.role == "po"]
    return AgentKpis(
        agent=PLANNER,
        role="planner",
        cost_usd=max(0.0, round(usd, 4)),
        tokens=max(0, tokens),
        **_of_runs(own),
    )


def _author(task: Task, runs: Sequence[Run]) -> AgentKpis:
    """The task's own agent: what the task cost without its reviews."""
    mine = [run for run in runs if run.task == task.id]
    reviews = [run for run in mine if run.role == "review"]
    said = task.log.feedback.task_clarity if task.log.feedback else 0
    return AgentKpis(
        agent=task.agent,
        role="checker" if task.plan.kind == "check" else "developer",
        tasks_completed=int(task.status is Status.DONE),
        tasks_failed=int(task.status is Status.ESCALATED),
        clarity=float(said) if said else None,
        cost_usd=max(0.0, round(task.usage.spent.usd - sum(r.usd for r in reviews), 4)),
        tokens=max(0, _tokens(task) - sum(r.tokens for r in reviews)),
        review_cycles=len(task.review.reviewed),
        interventions=task.supervision.total,
        **_of_runs([run for run in mine if run.role not in ("review", "verify")]),
    )


class _OfRuns(TypedDict):
    runs: int
    failed_runs: int
    time_s: float


def _of_runs(runs: Sequence[Run]) -> _OfRuns:
    failed = sum(run.end == "failed" for run in runs)
    return {
        "runs": len(runs),
        "failed_runs": failed,
        "time_s": round(sum(run.seconds for run in runs), 1),
    }


def verification_of(task: Task) -> str:
    """What the last verification of the task's merged result came to, in the words of a report."""
    found = task.merge.verified
    if found is None:
        return ""
    if not found.ok:
        return "red, allowed" if found.tolerated else "red"
    # One without a log had nothing to run.
    return "green" if found.log else "not verified"


def tools_of(state: State, runs: Sequence[Run]) -> dict[str, int]:
    """How often each tool was used: as the frameworks count, else as the agents say."""
    used: dict[str, int] = {}
    for run in runs:
        for name, times in run.tools.items():
            used[name] = used.get(name, 0) + times
    counted = {run.task for run in runs if run.tools}
    for task in state.tasks.values():
        if task.log.feedback and task.id not in counted:
            for name in task.log.feedback.tools_used:
                used[name] = used.get(name, 0) + 1
    return dict(sorted(used.items(), key=lambda entry: (-entry[1], entry[0])))


def blockers_of(state: State) -> tuple[str, ...]:
    """What stood in the way: what agents say, and why tasks were given to a person."""
    said = [b for t in state.tasks.values() if t.log.feedback for b in t.log.feedback.blockers]
    told = [f"{t.id}: {t.reason}" for t in state.tasks.values() if t.status is Status.ESCALATED]
    stopped = [state.sprint.planning.failure] if state.sprint.planning.failure else []
    return tuple(dict.fromkeys(" ".join(text.split()) for text in (*said, *told, *stopped)))


def _count(tasks: Iterable[Task], *statuses: Status) -> int:
    return sum(task.status in statuses for task in tasks)


def _tokens(task: Task) -> int:
    return task.usage.spent.tokens_in + task.usage.spent.tokens_out


def _share(part: float, whole: float, digits: int) -> float:
    return round(part / whole, digits) if whole else 0.0


def _percent(part: float, whole: float) -> float | None:
    return round(100 * part / whole, 1) if whole else None


def _mean(values: Sequence[float], digits: int) -> float | None:
    return round(sum(values) / len(values), digits) if values else None


def _mean_told(values: Sequence[float], digits: int) -> float | None:
    """Of what agents used: who told nothing has 0, which is no number to take a mean of."""
    return _mean([value for value in values if value], digits)


def _per_day(done: int, seconds: float) -> float:
    """Of the time as it is: a sprint of minutes would be 0.0 days."""
    return round(done / (seconds / _DAY), 1) if seconds else 0.0


#: A change of at most this share is no change.
DEAD_BAND = 0.05
_EARLIER = 10


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """A number beside the mean of earlier sprints."""

    metric: str
    now: float
    before: float
    #: How many earlier sprints have the number.
    n: int
    direction: Literal["improved", "degraded", "stable"]


_METRICS: tuple[tuple[str, Callable[[Kpis], float | None], bool], ...] = (
    ("completion_rate", lambda k: k.completion_rate, True),
    ("clean_task_pct", lambda k: k.clean_task_pct, True),
    ("avg_clarity", lambda k: k.avg_clarity, True),
    ("avg_review_cycles", lambda k: k.avg_review_cycles, False),
    ("avg_interventions", lambda k: k.avg_interventions, False),
    ("avg_tokens_per_task", lambda k: k.avg_tokens_per_task, False),
    ("avg_cost_per_task", lambda k: k.avg_cost_per_task, False),
    ("avg_time_per_task", lambda k: k.avg_time_per_task, False),
)


#: How people read each number: its name, and a form with its unit.
_WORDS: dict[str, tuple[str, Callable[[float], str]]] = {
    "completion_rate": ("tasks done", lambda n: f"{100 * n:.0f} %"),
    "clean_task_pct": ("tasks without the supervisor or people", lambda n: f"{n:.0f} %"),
    "avg_clarity": ("clarity", lambda n: f"{n:.1f}/10"),
    "avg_review_cycles": ("reviews per task", lambda n: f"{n:.2f}"),
    "avg_interventions": ("supervisor steps per task", lambda n: f"{n:.2f}"),
    "avg_tokens_per_task": ("tokens per task", lambda n: f"{n:.0f}"),
    "avg_cost_per_task": ("cost per task", lambda n: f"${n:.2f}"),
    "avg_time_per_task": ("time of agents per task", lambda n: span(60 * n)),
}


def label(metric: str) -> str:
    """A number's name for people."""
    return _WORDS[metric][0]


def worded(metric: str, value: float) -> str:
    """A value of a number, with its unit."""
    return _WORDS[metric][1](value)


def trends(now: Kpis, earlier: Iterable[Kpis]) -> tuple[Trend, ...]:
    """Each number beside its mean in earlier sprints that have it."""
    past = [kpis for kpis in earlier if kpis.total_tasks][-_EARLIER:]
    found = []
    for name, read, more_is_better in _METRICS:
        value = read(now) if now.total_tasks else None
        before = [known for kpis in past if (known := read(kpis)) is not None]
        if value is None or not before:
            continue
        mean = sum(before) / len(before)
        found.append(
            Trend(
                metric=name,
                now=value,
                before=round(mean, 4),
                n=len(before),
                direction=_direction(value, mean, more_is_better=more_is_better),
            )
        )
    return tuple(found)


def _direction(
    value: float, mean: float, *, more_is_better: bool
) -> Literal["improved", "degraded", "stable"]:
    if abs(value - mean) <= DEAD_BAND * abs(mean) + 1e-9:
        return "stable"
    return "improved" if (value > mean) is more_is_better else "degraded"
