"""Probe, restart, then a person; what recovered starts from the beginning again."""

from __future__ import annotations

from caloron.domain.sprint import State
from caloron.domain.supervise import Health, Limits, decide, intervene
from caloron.graph.jsontext import Json
from caloron.graph.protocols import Call
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.shapes import (
    held,
    held_state,
    is_flat,
    log_problems,
    now_of,
    read,
    state_of,
)

_LADDER = ("probe", "restart", "escalate_human")


def execute(given: Json, call: Call | None = None) -> Json:
    state = given.get("state")
    if state is not None and not is_flat(state):
        return _in_sprint(given, now_of(given, call))
    counts = {name: _count(name, told) for name, told in (given.get("interventions") or {}).items()}
    actions: list[Json] = []
    for result in given.get("results") or []:
        name, status = result["agent_id"], result["status"]
        if status == "healthy":
            counts.pop(name, None)
        elif status in ("stalled", "missing", "overdue"):
            count = counts.get(name, 0)
            step = _LADDER[-1] if status == "missing" else _LADDER[min(count, len(_LADDER) - 1)]
            reason = result.get("reason") or f"the agent is {status}"
            actions.append({"agent_id": name, "action": step, "reason": reason})
            counts[name] = count + 1
    return {"actions": actions, "updated_interventions": _written(counts)}


def _count(name: str, told: Json) -> int:
    """A number, or an object with one: both have been written."""
    count = told.get("count", 0) if isinstance(told, dict) else told
    if isinstance(count, bool) or not isinstance(count, int | float) or count != int(count):
        raise ValueError(f"interventions: the count of {name!r} is {told!r}")
    return int(count)


def _written(counts: dict[str, int]) -> Json:
    return {name: {"count": count} for name, count in sorted(counts.items())}


def _in_sprint(given: Json, now: float) -> Json:
    """The ladder of a sprint, whose counts stand in its state."""
    results: list[Health] = read(given.get("results") or [], list[Health], "results")
    limits: Limits = read(given.get("limits") or {}, Limits, "limits")
    state = state_of(given["state"])
    steps = decide(state, results, limits, now)
    decided = intervene(state, results, steps, now)
    log_problems(state, decided)
    return {
        "actions": held(decided.actions),
        "updated_interventions": _written(_counts(decided.state)),
        "state": held_state(decided.state),
        "moves": held(decided.moves),
        "steps": [f"{step.step}:{step.task} ({step.reason})" for step in steps],
    }


def _counts(state: State) -> dict[str, int]:
    return {task.agent: task.interventions for task in state.tasks.values() if task.interventions}


if __name__ == "__main__":
    alone(execute)
