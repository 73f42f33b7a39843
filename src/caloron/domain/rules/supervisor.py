"""Watches agents at work: probe, restart, then a person; and forgives when work goes on."""

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

Step = Literal["probe", "restart", "escalate_human"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long an agent may be silent, may run, and has to answer a probe."""

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
    step: Step
    reason: str


def check_health(agent: AgentSeen, limits: Limits) -> Health:
    """Silence counts from the last output or use of the processor, not from the start."""
    if agent.running_s > limits.timeout_s:
        return Health(agent=agent, status="overdue", reason=f"running for {_span(agent.running_s)}")
    if agent.silent_s > limits.stall_s:
        return Health(agent=agent, status="stalled", reason=f"silent for {_span(agent.silent_s)}")
    return Health(agent=agent, status="healthy")


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


def decide(state: State, results: list[Health], limits: Limits, now: float) -> list[Intervention]:
    """The next step of the ladder for each agent that needs one."""
    interventions = []
    for health in results:
        task = _at_work(state, health)
        if task is None or health.status == "healthy":
            continue
        waited = now - task.supervision.intervened_at >= limits.grace_s
        if not task.supervision.intervened_at or waited:
            interventions.append(
                Intervention(
                    task=task.id,
                    item=health.agent.item,
                    step=_step(task.supervision.interventions),
                    reason=health.reason,
                )
            )
    return interventions


def _step(count: int) -> Step:
    ladder: tuple[Step, ...] = ("probe", "restart", "escalate_human")
    return ladder[min(count, len(ladder) - 1)]


def _at_work(state: State, health: Health) -> Task | None:
    task = state.tasks.get(health.agent.task)
    same = task is not None and task.work is not None and task.work.item == health.agent.item
    return task if same else None


def intervene(
    state: State, results: list[Health], interventions: list[Intervention], now: float
) -> Decision:
    """Carry the ladder into the state: count, restart, escalate, forgive."""

    def rules(evaluation: Evaluation) -> None:
        for health in results:
            _forgive(evaluation, health)
        for intervention in interventions:
            task = evaluation.state.tasks[intervention.task]
            evaluation.apply(task.id, _take_step, task, intervention)
        progress_page.report(evaluation)

    decided = decide_on(state, now, rules)
    # The facts of the tick are not these rules' concern.
    decided.state.facts_wait = state.facts_wait
    return decided


def _forgive(evaluation: Evaluation, health: Health) -> None:
    """Life after a probe clears the count; after a restart only a finished attempt does."""
    task = _at_work(evaluation.state, health)
    if (
        task is None
        or health.status != "healthy"
        or task.supervision.restarts
        or not task.supervision.interventions
    ):
        return
    if health.agent.silent_s < evaluation.now - task.supervision.intervened_at:
        task.supervision.interventions, task.supervision.intervened_at = 0, 0.0


def _take_step(evaluation: Evaluation, task: Task, intervention: Intervention) -> None:
    work = task.work
    if work is None or task.status not in (Status.IN_PROGRESS, Status.IN_REVIEW):
        return
    task.supervision.interventions += 1
    task.supervision.total += 1
    task.supervision.intervened_at = evaluation.now
    cause = f"{WorkId.parse(work.item).name}-{task.supervision.total}"
    if intervention.step == "probe":
        key = f"probe/{work.item}/{cause}"
        evaluation.do(Probe(key=key, task=task.id, item=work.item, reason=intervention.reason))
        text = (
            f"@caloron-agent-{task.agent} has been {intervention.reason}. "
            "Its process is being looked at; it is restarted if nothing happens."
        )
        evaluation.comment(task, "probe", cause, text)
    elif intervention.step == "restart":
        task.supervision.restarts += 1
        evaluation.comment(
            task, "restart", cause, f"The agent is restarted: still {intervention.reason}."
        )
        reason = f"restarted: {intervention.reason}"
        evaluation.start(task, msgspec.structs.replace(work, previous_failure=reason), reason)
    else:
        evaluation.stop_work(task, intervention.reason)
        evaluation.escalate(
            task, f"the agent is {intervention.reason}, after a probe and a restart", held=work
        )
