"""Stages that load the state of a sprint, shape data between stages, and save the result."""

from __future__ import annotations

import msgspec

from caloron.domain.actions import Action, Moved
from caloron.domain.evaluate import Decision
from caloron.domain.facts import Fact
from caloron.domain.sprint import State
from caloron.domain.supervise import AgentSeen, Health, Intervention, Limits
from caloron.ledger.ledger import Loaded, TickCommit
from caloron.ledger.projected import digest
from caloron.ledger.projections import kv_text, write_kv
from caloron.stages.context import TickContext


class TickState(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `load_tick_state`: the sprint at one moment."""

    loaded: Loaded
    state: State
    agents: tuple[AgentSeen, ...]
    limits: Limits
    now: float


class EvaluateInput(msgspec.Struct, frozen=True, kw_only=True):
    state: State
    facts: tuple[Fact, ...]
    now: float


class InterventionInput(msgspec.Struct, frozen=True, kw_only=True):
    state: State
    results: tuple[Health, ...]
    limits: Limits
    now: float


class ExecuteInput(msgspec.Struct, frozen=True, kw_only=True):
    dag_actions: tuple[Action, ...]
    supervisor_actions: tuple[Action, ...]


class TickResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one tick came to, before it is saved."""

    state: State
    rows: tuple[Action, ...]
    actions_taken: tuple[str, ...]
    moves: tuple[Moved, ...]
    now: float


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `save_tick_state`."""

    state: State
    moves: tuple[Moved, ...]
    actions_taken: tuple[str, ...]
    #: Whether anything was written: an idle tick writes nothing.
    changed: bool


def load_tick_state(context: TickContext, sprint_id: str) -> TickState:
    """Read state, waiting facts and live agents; supplies `now`."""
    loaded = context.ledger.load(sprint_id)
    agents = () if context.grace else _agents(loaded)
    return TickState(
        loaded=loaded,
        state=loaded.state,
        agents=agents,
        limits=context.limits,
        now=context.clock.now(),
    )


def _agents(loaded: Loaded) -> tuple[AgentSeen, ...]:
    """Live agents, built fresh from their leases; ages by the database's own clock."""
    prefix = f"{loaded.state.sprint.id}/"
    return tuple(
        AgentSeen(
            item=lease.item,
            task=lease.item.split("/")[1],
            role=lease.kind,
            running_s=(lease.now_ms - lease.started_at) / 1000,
            silent_s=(lease.now_ms - (lease.activity_at or lease.started_at)) / 1000,
        )
        for lease in loaded.agents
        if lease.item.startswith(prefix) and lease.started_at and lease.result is None
    )


def project_poll_to_eval(tick: TickState, facts: tuple[Fact, ...]) -> EvaluateInput:
    return EvaluateInput(state=tick.state, facts=facts, now=tick.now)


def project_health_to_intervention(
    tick: TickState, evaluated: Decision, results: tuple[Health, ...]
) -> InterventionInput:
    return InterventionInput(
        state=evaluated.state, results=results, limits=tick.limits, now=tick.now
    )


def project_all_to_execute(evaluated: Decision, supervised: Decision) -> ExecuteInput:
    return ExecuteInput(dag_actions=evaluated.actions, supervisor_actions=supervised.actions)


def build_tick_output(
    tick: TickState,
    evaluated: Decision,
    supervised: Decision,
    interventions: tuple[Intervention, ...],
    executed: tuple[tuple[Action, ...], tuple[str, ...]],
) -> TickResult:
    rows, taken = executed
    told = tuple(f"{i.step}:{i.task} ({i.reason})" for i in interventions)
    return TickResult(
        state=supervised.state,
        rows=rows,
        actions_taken=(*told, *taken),
        moves=(*evaluated.moves, *supervised.moves),
        now=tick.now,
    )


def save_tick_state(context: TickContext, tick: TickState, result: TickResult) -> Saved:
    """Commit state, consumed facts and journal rows in one transaction, then write the file."""
    loaded = tick.loaded
    changed = bool(loaded.facts or result.rows or result.moves) or result.state != loaded.state
    if changed:
        text = kv_text(result.state, result.now)
        context.ledger.commit_tick(
            loaded,
            TickCommit(
                state=result.state,
                actions=result.rows,
                moves=result.moves,
                projection=digest(text),
            ),
        )
        write_kv(result.state.sprint.id, text)
    return Saved(
        state=result.state,
        moves=result.moves,
        actions_taken=result.actions_taken,
        changed=changed,
    )
