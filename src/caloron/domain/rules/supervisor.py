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
from caloron.domain.rules.evaluation import Decision, Evaluation
from caloron.domain.rules.evaluation import decide as decide_on

LadderStep = Literal["probe", "restart", "escalate_human"]
_LADDER: tuple[LadderStep, ...] = ("probe", "restart", "escalate_human")


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


class Intervention(msgspec.Struct, frozen=True, kw_only=True):
    task: str
    item: str
    step: LadderStep
    reason: str


def check_health(agent: AgentSeen, limits: Limits) -> Health:
    """Judge an agent; its silence begins with its last output or use of the processor."""
    if agent.running_s > limits.timeout_s:
        return Health(agent=agent, status="overdue", reason=f"running for {_span(agent.running_s)}")
    if agent.silent_s > limits.stall_s:
        return Health(agent=agent, status="stalled", reason=f"silent for {_span(agent.silent_s)}")
    return Health(agent=agent, status="healthy")


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


def decide(state: State, results: list[Health], limits: Limits, now: float) -> list[Intervention]:
    """Return the next step of the ladder for each agent that needs one."""
    interventions = []
    for health in results:
        task = _at_work(state, health)
        if task is None or health.status == "healthy":
            continue
        count, last = task.supervision.interventions, task.supervision.intervened_at
        if not last or now - last >= limits.grace_s:
            step = _LADDER[min(count, len(_LADDER) - 1)]
            item, reason = health.agent.item, health.reason
            interventions.append(Intervention(task=task.id, item=item, step=step, reason=reason))
    return interventions


def _at_work(state: State, health: Health) -> Task | None:
    task = state.tasks.get(health.agent.task)
    same = task is not None and task.work is not None and task.work.item == health.agent.item
    return task if same else None


def intervene(
    state: State, results: list[Health], interventions: list[Intervention], now: float
) -> Decision:
    """Apply interventions to the state, and forgive agents that work again."""

    def rules(evaluation: Evaluation) -> None:
        for health in results:
            _forgive(evaluation, health)
        for intervention in interventions:
            task = evaluation.state.tasks[intervention.task]
            evaluation.apply(task.id, _take_step, task, intervention)
        progress_page.report(evaluation)

    decided = decide_on(state, now, rules)
    # Interventions consume no facts, so whether facts wait stays as it was.
    decided.state.facts_wait = state.facts_wait
    return decided


def _forgive(evaluation: Evaluation, health: Health) -> None:
    """Clear the count after a sign of life; after a restart only a finished attempt does."""
    task = _at_work(evaluation.state, health)
    if task is None or health.status != "healthy":
        return
    watch = task.supervision
    silence_broken = health.agent.silent_s < evaluation.now - watch.intervened_at
    if watch.interventions and not watch.restarts and silence_broken:
        watch.interventions, watch.intervened_at = 0, 0.0


def _take_step(evaluation: Evaluation, task: Task, intervention: Intervention) -> None:
    work, watch, reason = task.work, task.supervision, intervention.reason
    if work is None or task.status not in (Status.IN_PROGRESS, Status.IN_REVIEW):
        return
    watch.interventions += 1
    watch.total += 1
    watch.intervened_at = evaluation.now
    cause = f"{WorkId.parse(work.item).name}-{watch.total}"
    if intervention.step == "probe":
        key = f"probe/{work.item}/{cause}"
        evaluation.do(Probe(key=key, task=task.id, item=work.item, reason=reason))
        text = (
            f"@caloron-agent-{task.agent} has been {reason}. "
            "Its process is being looked at; it is restarted if nothing happens."
        )
        evaluation.comment(task, "probe", cause, text)
    elif intervention.step == "restart":
        watch.restarts += 1
        evaluation.comment(task, "restart", cause, f"The agent is restarted: still {reason}.")
        why = f"restarted: {reason}"
        evaluation.start(task, msgspec.structs.replace(work, previous_failure=why), why)
    else:
        evaluation.stop_work(task, reason)
        reason = f"the agent is {reason}, after a probe and a restart"
        evaluation.escalate(task, reason, work)
