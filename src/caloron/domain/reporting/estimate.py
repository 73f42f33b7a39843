"""Estimates of a plan: agent runs, money and time, from those of earlier tasks."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import msgspec

from caloron.domain.model.plan import PlannedTask, chain_lengths
from caloron.domain.model.sprint import State
from caloron.domain.model.status import Status
from caloron.domain.reporting.kpis import Run, work_time_s


class Experience(msgspec.Struct, frozen=True, kw_only=True):
    """The medians of the done tasks of earlier sprints."""

    sprints: int = 0
    tasks: int = 0
    runs_per_task: float | None = None
    #: None: no run reported its cost.
    usd_per_task: float | None = None
    seconds_per_task: float | None = None


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate of a plan; None: there is no experience."""

    agent_runs: int
    #: The number of tasks on the longest chain.
    steps: int
    cost_usd: float | None
    duration_s: float | None
    #: The sprints and tasks that the estimate is based on.
    sprints: int
    tasks: int


def experience(earlier: Iterable[tuple[State, tuple[Run, ...]]]) -> Experience:
    """Sum up sprints; only tasks that were done count, and only sprints that had one."""
    runs: list[int] = []
    usd: list[float] = []
    seconds: list[float] = []
    sprints = 0
    for state, all_runs in earlier:
        done = [t for t in state.tasks.values() if t.status is Status.DONE and t.times.started_at]
        sprints += bool(done)
        for task in done:
            mine = [r for r in all_runs if r.task == task.id and r.end != "interrupted"]
            runs.append(sum(r.role != "verify" for r in mine))
            if task.usage.spent.usd:
                usd.append(task.usage.spent.usd)
            # The time between start and end may include a night without work.
            if mine:
                seconds.append(work_time_s(mine))
    return Experience(
        sprints=sprints,
        tasks=len(runs),
        runs_per_task=median(runs) if runs else None,
        usd_per_task=median(usd) if usd else None,
        seconds_per_task=median(seconds) if seconds else None,
    )


def estimate(plan: tuple[PlannedTask, ...], parallel: int, known: Experience) -> Estimate:
    """Estimate a plan that runs with so many agents at once."""
    # A change takes a run and a review, a check one run. Fixes come on top of that.
    least = sum(1 if task.kind == "check" else 2 for task in plan)
    count = len(plan)
    usual = round((known.runs_per_task or 0) * count)
    return Estimate(
        agent_runs=max(least, usual),
        steps=max(chain_lengths(plan).values(), default=0),
        cost_usd=None if known.usd_per_task is None else known.usd_per_task * count,
        duration_s=None
        if known.seconds_per_task is None
        else known.seconds_per_task * rounds(plan, parallel),
        sprints=known.sprints,
        tasks=known.tasks,
    )


def rounds(plan: tuple[PlannedTask, ...], parallel: int) -> int:
    """Count the rounds of so many parallel agents if all tasks take the same time."""
    chains = chain_lengths(plan)
    waiting = sorted(plan, key=lambda task: -chains[task.id])
    done: set[str] = set()
    count = 0
    while waiting:
        ready = [task for task in waiting if done.issuperset(task.depends_on)][: max(1, parallel)]
        done |= {task.id for task in ready}
        waiting = [task for task in waiting if task.id not in done]
        count += 1
    return count
