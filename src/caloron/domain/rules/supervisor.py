"""Supervises running agents: probe, restart, then escalate; forgives when work goes on."""

from __future__ import annotations

from typing import Literal

import msgspec

from caloron.domain.model.effects import Probe
from caloron.domain.model.roles import WorkId
from caloron.domain.model.sprint import State
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task
from caloron.domain.reporting import progress_page
from caloron.domain.rules.evaluation import Decision, Evaluation, decide

_LADDER = ("probe", "restart", "escalate_human")


def step_after(interventions: int) -> str:
    """Return the step of the ladder after so many interventions."""
    return _LADDER[min(interventions, len(_LADDER) - 1)]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The longest silence and run of an agent, and its time to answer a probe."""

    stall_s: float = 1200.0
    timeout_s: float = 1800.0
    grace_s: float = 300.0


class AgentSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A live agent as its lease shows it."""

    item: str
    task: str
    role: str
    running_s: float
    silent_s: float


class Health(msgspec.Struct, frozen=True, kw_only=True):
    agent: AgentSeen
    status: Literal["healthy", "stalled", "overdue"]
    reason: str = ""


def check_health(agent: AgentSeen, limits: Limits) -> Health:
    """Judge an agent; its silence begins with its last output or use of the processor."""
    if agent.running_s > limits.timeout_s:
        return Health(agent=agent, status="overdue", reason=f"running for {_span(agent.running_s)}")
    if agent.silent_s > limits.stall_s:
        return Health(agent=agent, status="stalled", reason=f"silent for {_span(agent.silent_s)}")
    return Health(agent=agent, status="healthy")


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


def supervise(
    state: State, results: list[Health], limits: Limits, now: float
) -> tuple[Decision, list[str]]:
    """Take the next step of the ladder for each agent that needs one; the lines name the steps.

    Agents that work again are forgiven.
    """
    steps = [(health, _next_step(state, health, limits, now)) for health in results]
    steps = [(health, step) for health, step in steps if step]

    def rules(evaluation: Evaluation) -> None:
        for health in results:
            _forgive(evaluation, health)
        for health, step in steps:
            evaluation.apply(health.agent.task, _take_step, health, step)
        progress_page.report(evaluation)

    decided = decide(state, now, rules)
    # Interventions consume no facts, so whether facts wait stays as it was.
    decided.state.facts_wait = state.facts_wait
    return decided, [f"{step}:{health.agent.task} ({health.reason})" for health, step in steps]


def _next_step(state: State, health: Health, limits: Limits, now: float) -> str:
    """Return the step that an agent needs now, or an empty string."""
    task = _at_work(state, health)
    if task is None or health.status == "healthy":
        return ""
    count, last = task.supervision.interventions, task.supervision.intervened_at
    if last and now - last < limits.grace_s:
        return ""
    return step_after(count)


def _at_work(state: State, health: Health) -> Task | None:
    task = state.tasks.get(health.agent.task)
    same = task is not None and task.work is not None and task.work.item == health.agent.item
    return task if same else None


def _forgive(evaluation: Evaluation, health: Health) -> None:
    """Clear the count after a sign of life; after a restart only a finished attempt does."""
    task = _at_work(evaluation.state, health)
    if task is None or health.status != "healthy":
        return
    watch = task.supervision
    silence_broken = health.agent.silent_s < evaluation.now - watch.intervened_at
    if watch.interventions and not watch.restarts and silence_broken:
        watch.interventions, watch.intervened_at = 0, 0.0


def _take_step(evaluation: Evaluation, health: Health, step: str) -> None:
    task, reason = evaluation.state.tasks[health.agent.task], health.reason
    work, watch = task.work, task.supervision
    if work is None or task.status not in (Status.IN_PROGRESS, Status.IN_REVIEW):
        return
    watch.interventions += 1
    watch.total += 1
    watch.intervened_at = evaluation.now
    cause = f"{WorkId.parse(work.item).name}-{watch.total}"
    if step == "probe":
        key = f"probe/{work.item}/{cause}"
        evaluation.do(Probe(key=key, task=task.id, item=work.item, reason=reason))
        text = (
            f"@caloron-agent-{task.agent} has been {reason}. "
            "Its process is being looked at; it is restarted if nothing happens."
        )
        evaluation.comment(task, "probe", cause, text)
    elif step == "restart":
        watch.restarts += 1
        evaluation.comment(task, "restart", cause, f"The agent is restarted: still {reason}.")
        why = f"restarted: {reason}"
        evaluation.start(task, msgspec.structs.replace(work, previous_failure=why), why)
    else:
        evaluation.stop_work(task, reason)
        reason = f"the agent is {reason}, after a probe and a restart"
        evaluation.escalate(task, reason, work)
