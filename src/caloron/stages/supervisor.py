"""The supervisor: health of agents, interventions, and the comment about them."""

from __future__ import annotations

from caloron.domain.model.roles import UNSUPERVISED_ROLES
from caloron.domain.model.sprint import State
from caloron.domain.rules.supervisor import (
    AgentSeen,
    Health,
    Limits,
    check_health,
    step_after,
    supervise,
)
from caloron.graph.json_text import Json
from caloron.graph.runtime.protocols import Call
from caloron.ledger.tick_context import log_problems
from caloron.stages.values import (
    current_time,
    decode_as,
    decode_state,
    in_process,
    in_process_state,
    is_stateless,
    parse_time,
    to_json,
)

_STALL_M = 20.0
#: An agent that just started may not have sent a heartbeat yet.
_FIRST_SIGN_S = 120.0


def check_agent_health(inputs: Json, call: Call | None = None) -> Json:
    """Return the health of each agent: healthy, stalled, overdue, missing or unknown."""
    agents = inputs.get("agents") or []
    threshold = inputs.get("stall_threshold_m")
    stall_m = _STALL_M if threshold is None else float(threshold)
    if isinstance(agents, dict):
        now = current_time(inputs, call)
        return {
            "results": [_health_by_heartbeat(name, agents[name], now, stall_m) for name in agents]
        }
    seen: tuple[AgentSeen, ...] = decode_as(agents, tuple[AgentSeen, ...], "agents")
    limits: Limits = decode_as(inputs.get("limits") or {"stall_s": stall_m * 60}, Limits, "limits")
    return {
        "results": [
            _health_by_lease(agent, limits)
            for agent in seen
            if agent.role not in UNSUPERVISED_ROLES
        ]
    }


def _health_by_lease(agent: AgentSeen, limits: Limits) -> Json:
    health = to_json(check_health(agent, limits))
    return health | {"agent_id": agent.task, "minutes_since": round(agent.silent_s / 60)}


def _health_by_heartbeat(name: str, agent: Json, now: float, stall_m: float) -> Json:
    """Return the health of an agent of which only the last heartbeat and the start are known."""
    if not isinstance(agent, dict):
        raise ValueError(f"agents: {name!r} is no object")
    heard = parse_time(agent.get("last_heartbeat_at"))
    started = parse_time(agent.get("task_started_at"))
    if heard is None:
        status = "unknown" if started is None else "healthy"
        if started is not None and now - started > _FIRST_SIGN_S:
            status = "missing"
        return {"agent_id": name, "status": status, "minutes_since": 0, "reason": ""}
    minutes = max(0.0, now - heard) / 60
    stalled = minutes > stall_m
    return {
        "agent_id": name,
        "status": "stalled" if stalled else "healthy",
        "minutes_since": round(minutes),
        "reason": f"silent for {minutes:.0f} min" if stalled else "",
    }


def decide_intervention(inputs: Json, call: Call | None = None) -> Json:
    """Choose the next step for each unhealthy agent: probe, restart, then a person.

    An agent that recovered starts from the first step again.
    """
    state = inputs.get("state")
    if state is not None and not is_stateless(state):
        return _decide_in_sprint(inputs, current_time(inputs, call))
    counts = {
        name: _count(name, value) for name, value in (inputs.get("interventions") or {}).items()
    }
    actions: list[Json] = []
    for result in inputs.get("results") or []:
        name, status = result["agent_id"], result["status"]
        if status == "healthy":
            counts.pop(name, None)
        elif status in ("stalled", "missing", "overdue"):
            count = counts.get(name, 0)
            step = "escalate_human" if status == "missing" else step_after(count)
            reason = result.get("reason") or f"the agent is {status}"
            actions.append({"agent_id": name, "action": step, "reason": reason})
            counts[name] = count + 1
    return {"actions": actions, "updated_interventions": _counts_json(counts)}


def _count(name: str, value: Json) -> int:
    """Return a count, which is stored as a number or as an object with one."""
    count = value.get("count", 0) if isinstance(value, dict) else value
    if isinstance(count, bool) or not isinstance(count, int | float) or count != int(count):
        raise ValueError(f"interventions: the count of {name!r} is {value!r}")
    return int(count)


def _counts_json(counts: dict[str, int]) -> Json:
    return {name: {"count": count} for name, count in sorted(counts.items())}


def _decide_in_sprint(inputs: Json, now: float) -> Json:
    """Decide for a sprint, whose state has the counts."""
    results: list[Health] = decode_as(inputs.get("results") or [], list[Health], "results")
    limits: Limits = decode_as(inputs.get("limits") or {}, Limits, "limits")
    state = decode_state(inputs["state"])
    decided, steps = supervise(state, results, limits, now)
    log_problems(state, decided)
    return {
        "actions": in_process(decided.actions),
        "updated_interventions": _counts_json(_counts(decided.state)),
        "state": in_process_state(decided.state),
        "moves": in_process(decided.moves),
        "steps": steps,
    }


def _counts(state: State) -> dict[str, int]:
    return {
        task.agent: task.supervision.interventions
        for task in state.tasks.values()
        if task.supervision.interventions
    }


_MESSAGES = {
    "probe": "@caloron-agent-{agent} is {status} at “{task}”. "
    "How far is it, and what stands in the way?",
    "restart": "The agent {agent} is {status} at “{task}” and is restarted. "
    "What is in its workspace is kept.",
    "escalate_human": "### A person is needed\n\n"
    "- agent: {agent}\n- task: {task}\n- status: {status}\n\n"
    "Comment `resolved` to let it go on, or `caloron:take-over` to do it yourself.",
}


def compose_intervention_message(inputs: Json) -> Json:
    """Return the comment on the forge about an agent that needs an intervention."""
    form = _MESSAGES.get(inputs["action"], "The agent {agent} is {status} at “{task}”.")
    agent, task, status = inputs["agent_id"], inputs["task_title"], inputs["health_status"]
    return {"message": form.format(agent=agent, task=task, status=status)}
