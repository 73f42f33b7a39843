"""The first phase: takes the goal in, with the design that there is."""

from __future__ import annotations

from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone


def execute(given: Json) -> Json:
    goal = given["goal"]
    if not goal.strip():
        raise ValueError("goal: it is empty")
    return {
        "goal": goal,
        "constraints": given.get("constraints") or "",
        "design_brief": given.get("design_brief") or "",
        "components_inventory": given.get("components_inventory") or [],
    }


if __name__ == "__main__":
    alone(execute)
