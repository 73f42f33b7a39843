"""The tasks in a model's answer, held to everything that a plan must be."""

from __future__ import annotations

from caloron.domain.plan import PlanProblem, parse_plan
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.with_model import Unusable

#: What a model is asked for; a plan may hold more, but nobody would read it.
MOST_PLANNED = 40
#: A check of a task is called after it, and its name is an id too.
LONGEST_ID = 48
_KEPT = ("id", "title", "depends_on", "agent_prompt", "acceptance", "component")


def planned(answer: dict[str, Json]) -> list[Json]:
    """The tasks, with the fields that were asked for and no others."""
    told = answer.get("tasks")
    if not isinstance(told, list) or not 0 < len(told) <= MOST_PLANNED:
        raise Unusable(f"`tasks` must be a list of 1 to {MOST_PLANNED} objects")
    if not all(isinstance(one, dict) for one in told):
        raise Unusable("each of `tasks` must be an object")
    tasks = [{name: one[name] for name in _KEPT if one.get(name) is not None} for one in told]
    for task in tasks:
        task.setdefault("depends_on", [])
    try:
        found = parse_plan(tasks)
    except PlanProblem as problem:
        raise Unusable(str(problem)) from problem
    if long := next((task.id for task in found if len(task.id) > LONGEST_ID), ""):
        raise Unusable(f"the id {long!r} is longer than {LONGEST_ID} characters")
    return tasks
