"""The stages of a tick around its decisions: load, re-key, save."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from caloron.domain.model.effects import Action, Moved
from caloron.graph.json_text import Json, unwrap
from caloron.ledger.ledger import Loaded, StaleTick
from caloron.ledger.state_file import iso, kv_path
from caloron.ledger.tick_context import TickContext, agents_of, commit_decision, ensure_context
from caloron.stages.values import (
    concat,
    decode_as,
    decode_state,
    in_process,
    in_process_state,
    parse_time,
    to_json,
)

if TYPE_CHECKING:
    from caloron.domain.reporting.kpis import Run


_PASSED_ON = ("repo", "token_env", "shell_url", "host")


def load_tick_state(inputs: Json, context: TickContext | None = None) -> Json:
    """Read a sprint from its ledger: state, waiting facts, live agents, and the time."""
    sprint = inputs["sprint_id"]
    with ensure_context(context, sprint, inputs.get("stall_threshold_m")) as opened:
        loaded, now, limits = opened.ledger.load(sprint), opened.clock.now(), opened.limits
        runs = in_process(_agent_runs(opened, sprint)) if inputs.get("with_runs") else None
    counts = {t.agent: {"count": t.supervision.interventions} for t in loaded.state.tasks.values()}
    return {
        "sprint_id": sprint,
        "stall_threshold_m": limits.stall_s / 60,
        **{name: inputs.get(name) or "" for name in _PASSED_ON},
        "state": in_process_state(loaded.state),
        # The loop itself was suspended, so agents are not judged by this gap.
        "agents": in_process(() if opened.grace else agents_of(loaded)),
        "interventions": {agent: count for agent, count in counts.items() if count["count"]},
        "since": iso(now),
        "now": now,
        "limits": to_json(limits),
        "facts": in_process(loaded.facts),
        "runs": runs,
        "loaded": {"version": loaded.version, "through": loaded.through},
    }


def _agent_runs(opened: TickContext, sprint: str) -> tuple[Run, ...]:
    """Return all runs of agents in the sprint; the retro counts them."""
    # Imported here: a tick never reads the whole event log.
    from caloron.ledger.run_history import figures_of

    with opened.ledger.db.snapshot() as connection:
        return figures_of(connection, sprint).runs


def project_poll_to_eval(inputs: Json) -> Json:
    """Return the polled events as input of `dag_evaluate`."""
    poll, threshold = unwrap(inputs.get("poll")) or {}, inputs.get("stall_threshold_m")
    return {
        "state": inputs["state"],
        "events": poll.get("events") or [],
        "now": inputs.get("now"),
        "stall_threshold_m": 20 if threshold is None else threshold,
    }


def project_health_to_intervention(inputs: Json) -> Json:
    """Return the health of agents as input of `decide_intervention`.

    The state is that after the events: an agent whose task just ended needs no intervention.
    """
    evaluated, health = unwrap(inputs.get("eval")) or {}, unwrap(inputs.get("health")) or {}
    return {
        "results": health.get("results") or [],
        "interventions": inputs.get("interventions") or {},
        "state": evaluated.get("state"),
        "limits": inputs.get("limits"),
        "now": inputs.get("now"),
    }


_PASSED_TO_ACTIONS = ("repo", "token_env", "shell_url", "host", "sprint_id")


def project_all_to_execute(inputs: Json) -> Json:
    """Return all decisions of a tick as input of `execute_actions`."""
    return {
        "dag_actions": (unwrap(inputs.get("eval")) or {}).get("actions") or [],
        "supervisor_actions": (unwrap(inputs.get("supervisor")) or {}).get("actions") or [],
        **{name: inputs.get(name) or "" for name in _PASSED_TO_ACTIONS},
    }


def build_tick_output(inputs: Json) -> Json:
    """Return the result of one tick, before it is saved."""
    evaluated, supervised, executed, poll = (
        unwrap(inputs.get(name)) or {} for name in ("eval", "supervisor", "execute_result", "poll")
    )
    return {
        "actions_taken": [*(supervised.get("steps") or []), *(executed.get("actions_taken") or [])],
        "errors": executed.get("errors") or [],
        # The supervisor decides after the events, on the state that they left.
        "state": supervised.get("state") or evaluated.get("state"),
        "polled_at": poll.get("polled_at") or "",
        "interventions": supervised.get("updated_interventions") or {},
        "rows": executed.get("rows") or [],
        "moves": concat(evaluated.get("moves"), supervised.get("moves")),
        "now": inputs.get("now"),
        "loaded": inputs.get("loaded"),
    }


class _LoadedVersion(msgspec.Struct):
    """The version of the sprint when the tick began, and the last fact that it read."""

    version: int
    through: int


def save_tick_state(inputs: Json, context: TickContext | None = None) -> Json:
    """Commit state, consumed facts and journal rows in one transaction, then write the file.

    An idle tick writes nothing.
    """
    sprint, result = inputs["sprint_id"], unwrap(inputs["tick_result"])
    state = decode_state(result.get("state"))
    if state.sprint.id != sprint:
        raise ValueError(f"tick_result: it is of the sprint {state.sprint.id!r}")
    began: _LoadedVersion = decode_as(result.get("loaded"), _LoadedVersion, "tick_result: loaded")
    actions: tuple[Action, ...] = decode_as(result.get("rows") or (), tuple[Action, ...], "rows")
    moves: tuple[Moved, ...] = decode_as(result.get("moves") or (), tuple[Moved, ...], "moves")
    now = parse_time(result.get("now")) or 0.0
    with ensure_context(context, sprint) as opened:
        loaded = _load_unchanged(opened, sprint, began)
        changed = commit_decision(opened, loaded, state, actions, moves, now)
    return {
        "actions_taken": result.get("actions_taken") or [],
        "errors": result.get("errors") or [],
        "persisted_path": str(kv_path(sprint)),
        "changed": changed,
        "state": in_process_state(state),
        "moves": in_process(moves),
    }


def _load_unchanged(context: TickContext, sprint: str, began: _LoadedVersion) -> Loaded:
    """Load the sprint again; facts that came since the tick began are not consumed."""
    loaded = context.ledger.load(sprint)
    if loaded.version != began.version:
        raise StaleTick(f"sprint {sprint} was changed by another tick")
    facts = loaded.facts if began.through else ()
    return msgspec.structs.replace(loaded, through=began.through, facts=facts)
