"""Everything that is wrong with a plan, before any side effect."""

from __future__ import annotations

from caloron.domain.plan import PlanProblem, parse_plan
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone


def execute(given: Json) -> Json:
    try:
        parse_plan(_plan(given["dag"]))
    except PlanProblem as problem:
        return {"valid": False, "errors": list(problem.errors)}
    return {"valid": True, "errors": []}


def _plan(dag: Json) -> Json:
    """A plan is a list of tasks; a sprint's tasks are an object, and need not say their prompt."""
    tasks = dag.get("tasks") if isinstance(dag, dict) else dag
    if not isinstance(tasks, dict):
        return tasks
    return [_planned(name, record) for name, record in tasks.items()]


def _planned(name: str, record: Json) -> Json:
    if not isinstance(record, dict):
        return record
    title = record.get("title", name)
    return {"id": name, "title": title, "agent_prompt": title, **record}


if __name__ == "__main__":
    alone(execute)
