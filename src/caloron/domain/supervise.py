"""Watches agents at work: probe, restart, then a person; and forgives when work goes on."""

from __future__ import annotations

from typing import Literal

import msgspec

from caloron.domain import progress
from caloron.domain.actions import Probe
from caloron.domain.sprint import State, Task
from caloron.domain.status import Status
from caloron.domain.turn import Decision, Turn
from caloron.domain.turn import decide as decide_on

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
        waited = now - task.intervened_at >= limits.grace_s
        if not task.intervened_at or waited:
            interventions.append(
                Intervention(
                    task=task.id,
                    item=health.agent.item,
                    step=_step(task.interventions),
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

    def rules(turn: Turn) -> None:
        for health in results:
            _forgive(turn, health)
        for intervention in interventions:
            task = turn.state.tasks[intervention.task]
            turn.apply(task.id, _take_step, task, intervention)
        progress.report(turn)

    decided = decide_on(state, now, rules)
    # The facts of the tick are not these rules' concern.
    decided.state.facts_wait = state.facts_wait
    return decided


def _forgive(turn: Turn, health: Health) -> None:
    """Life after a probe clears the count; after a restart only a finished attempt does."""
    task = _at_work(turn.state, health)
    if task is None or health.status != "healthy" or task.restarts or not task.interventions:
        return
    if health.agent.silent_s < turn.now - task.intervened_at:
        task.interventions, task.intervened_at = 0, 0.0


def _take_step(turn: Turn, task: Task, intervention: Intervention) -> None:
    work = task.work
    if work is None or task.status not in (Status.IN_PROGRESS, Status.IN_REVIEW):
        return
    task.interventions += 1
    task.steps += 1
    task.intervened_at = turn.now
    cause = f"{work.item.rsplit('/', 1)[1]}-{task.steps}"
    if intervention.step == "probe":
        key = f"probe/{work.item}/{cause}"
        turn.do(Probe(key=key, task=task.id, item=work.item, reason=intervention.reason))
        text = (
            f"@caloron-agent-{task.agent} has been {intervention.reason}. "
            "Its process is being looked at; it is restarted if nothing happens."
        )
        turn.comment(task, "probe", cause, text)
    elif intervention.step == "restart":
        task.restarts += 1
        turn.comment(
            task, "restart", cause, f"The agent is restarted: still {intervention.reason}."
        )
        reason = f"restarted: {intervention.reason}"
        turn.start(task, msgspec.structs.replace(work, note=reason), reason)
    else:
        turn.stop_work(task, intervention.reason)
        turn.escalate(
            task, f"the agent is {intervention.reason}, after a probe and a restart", held=work
        )
