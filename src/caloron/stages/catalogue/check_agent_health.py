"""Healthy, stalled, overdue, missing or unknown, for each agent; by `now`, or by the clock."""

from __future__ import annotations

from caloron.domain.supervise import AgentSeen, Limits, check_health
from caloron.graph.jsontext import Json
from caloron.graph.protocols import Call
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.shapes import moment, now_of, plain, read

_STALL_M = 20.0
#: An agent that was just started need not have been heard of.
_FIRST_SIGN_S = 120.0
#: Planning, verification and the retro have limits of their own.
_NOT_WATCHED = ("po", "retro", "verify")


def execute(given: Json, call: Call | None = None) -> Json:
    agents = given.get("agents") or []
    threshold = given.get("stall_threshold_m")
    stall_m = _STALL_M if threshold is None else float(threshold)
    if isinstance(agents, dict):
        now = now_of(given, call)
        return {"results": [_by_heartbeat(name, agents[name], now, stall_m) for name in agents]}
    seen: tuple[AgentSeen, ...] = read(agents, tuple[AgentSeen, ...], "agents")
    limits: Limits = read(given.get("limits") or {"stall_s": stall_m * 60}, Limits, "limits")
    return {"results": [_by_lease(one, limits) for one in seen if one.role not in _NOT_WATCHED]}


def _by_lease(agent: AgentSeen, limits: Limits) -> Json:
    told = plain(check_health(agent, limits))
    return told | {"agent_id": agent.task, "minutes_since": round(agent.silent_s / 60)}


def _by_heartbeat(name: str, agent: Json, now: float, stall_m: float) -> Json:
    """An agent of which only its last sign of life and its start are known."""
    if not isinstance(agent, dict):
        raise ValueError(f"agents: {name!r} is no object")
    heard, started = moment(agent.get("last_heartbeat_at")), moment(agent.get("task_started_at"))
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


if __name__ == "__main__":
    alone(execute)
