"""The plan of a sprint from its phases: the tasks, and a check behind each of them."""

from __future__ import annotations

from caloron.domain.plan import MAX_TITLE, parse_plan
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone


def execute(given: Json) -> Json:
    tasks, checks = given["tasks"], given.get("review_checks") or []
    planned = [*tasks, *(_task(place, check) for place, check in enumerate(checks))]
    # Raises with every error at once: ids that are there twice, dependencies on nothing, cycles.
    parse_plan(planned)
    return {"tasks": planned}


def _task(place: int, check: Json) -> Json:
    if not isinstance(check, dict) or not check.get("id") or not check.get("reviews"):
        raise ValueError(f"review_checks[{place}]: it needs `id` and `reviews`")
    return {
        "id": check["id"],
        "title": f"Review {check['reviews']}"[:MAX_TITLE],
        "depends_on": [check["reviews"]],
        "agent_prompt": check.get("agent_prompt") or f"Review the task {check['reviews']}.",
        "framework": check.get("framework") or "",
        "kind": "check",
    }


if __name__ == "__main__":
    alone(execute)
