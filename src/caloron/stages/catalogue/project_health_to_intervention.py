"""The health of agents, as `decide_intervention` takes it."""

from __future__ import annotations

from caloron.graph.held import opened
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone


def execute(given: Json) -> Json:
    """The state is that after the events: an agent whose task just ended needs no help."""
    evaluated, health = opened(given.get("eval")) or {}, opened(given.get("health")) or {}
    return {
        "results": health.get("results") or [],
        "interventions": given.get("interventions") or {},
        "state": evaluated.get("state"),
        "limits": given.get("limits"),
        "now": given.get("now"),
    }


if __name__ == "__main__":
    alone(execute)
