"""Stages that watch agents: judge their health, and decide and apply the next step."""

from __future__ import annotations

from caloron.domain.evaluate import Decision
from caloron.domain.supervise import (
    AgentSeen,
    Health,
    Intervention,
    check_health,
    decide,
    intervene,
)
from caloron.stages.sprint import InterventionInput, TickState


def check_agent_health(tick: TickState) -> tuple[Health, ...]:
    """Healthy, stalled or overdue, for each live agent; planning, verification and the retro have
    limits of their own."""
    return tuple(check_health(agent, tick.limits) for agent in tick.agents if is_watched(agent))


def is_watched(agent: AgentSeen) -> bool:
    """Whether the ladder is for this agent."""
    return agent.role not in ("po", "retro", "verify")


def decide_intervention(given: InterventionInput) -> tuple[Decision, tuple[Intervention, ...]]:
    """Probe, restart or escalate what is not healthy; clear the count of what recovered."""
    results = list(given.results)
    interventions = decide(given.state, results, given.limits, given.now)
    return intervene(given.state, results, interventions, given.now), tuple(interventions)
