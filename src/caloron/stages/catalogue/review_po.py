"""One check for each task: what a reviewer shall look at."""

from __future__ import annotations

from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone

_FRAMEWORK = "claude-code"
_TESTS = "whether the tests can fail, and cover what the design asks for"
_CODE = "whether it does what the design asks for, and nothing that it does not"


def execute(given: Json) -> Json:
    tasks, framework = given["tasks"], given.get("framework")
    if framework is None:
        framework = _FRAMEWORK
    if not tasks:
        raise ValueError("tasks: there are none")
    return {
        "design_doc": given.get("design_doc") or "",
        "tasks": tasks,
        "review_checks": [_check(place, task, framework) for place, task in enumerate(tasks)],
    }


def _check(place: int, task: Json, framework: str) -> Json:
    name = task.get("id") if isinstance(task, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError(f"tasks[{place}]: it has no id")
    focus = _TESTS if name.startswith("tests-") else _CODE
    title = task.get("title") or name
    return {
        "id": f"review-{name}",
        "reviews": name,
        "focus": focus,
        "agent_prompt": f"Look at what the task {name} ({title}) put on main: {focus}.",
        "framework": framework,
    }


if __name__ == "__main__":
    alone(execute)
