"""Reads a sprint from its ledger: state, waiting facts, live agents, and the time."""

from __future__ import annotations

from caloron.graph.jsontext import Json
from caloron.ledger.projections import iso
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.of_sprint import context_of
from caloron.stages.catalogue.shapes import plain
from caloron.stages.sprint import load_tick_state

_PASSED_ON = ("repo", "token_env", "shell_url", "host")


def execute(given: Json) -> Json:
    sprint = given["sprint_id"]
    with context_of(sprint, given.get("stall_threshold_m")) as context:
        tick = load_tick_state(context, sprint)
    counts = {t.agent: {"count": t.interventions} for t in tick.state.tasks.values()}
    return {
        "sprint_id": sprint,
        "stall_threshold_m": tick.limits.stall_s / 60,
        **{name: given.get(name) or "" for name in _PASSED_ON},
        "state": plain(tick.state),
        "agents": plain(tick.agents),
        "interventions": {agent: told for agent, told in counts.items() if told["count"]},
        "since": iso(tick.now),
        "now": tick.now,
        "limits": plain(tick.limits),
        "facts": plain(tick.loaded.facts),
        "loaded": {"version": tick.loaded.version, "through": tick.loaded.through},
    }


if __name__ == "__main__":
    alone(execute)
