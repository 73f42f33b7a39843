"""The plan of a sprint from its phases: the tasks, and a check behind each of them."""

from __future__ import annotations

from caloron.domain.plan import MAX_PROMPT, MAX_TITLE, parse_plan
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone

_DESIGN = "\n\nThe design of the whole sprint, of which this task is one part:\n\n"
_CUT = "\n… (the design is longer; the rest is left out)\n"


def execute(given: Json) -> Json:
    tasks, checks = given["tasks"], given.get("review_checks") or []
    design = str(given.get("design_doc") or "").strip()
    checking = (_task(place, check) for place, check in enumerate(checks))
    planned = [_with_design(task, design) for task in (*tasks, *checking)]
    # Raises with every error at once: ids that are there twice, dependencies on nothing, cycles.
    parse_plan(planned)
    return {"tasks": planned}


def _with_design(task: Json, design: str) -> Json:
    """The task with the design that it is a part of: its agent sees nothing else of the phases."""
    prompt = task.get("agent_prompt") if isinstance(task, dict) else None
    if not design or not isinstance(prompt, str):
        return task
    whole = f"{prompt}{_DESIGN}{design}"
    if len(whole) > MAX_PROMPT:
        whole = whole[: MAX_PROMPT - len(_CUT)] + _CUT
    return task | {"agent_prompt": whole}


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
