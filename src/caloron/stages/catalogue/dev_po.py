"""Tasks for components, by rules: the thing itself, then its tests."""

from __future__ import annotations

from caloron.domain.plan import MAX_TITLE
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.names import distinct, slug

_FRAMEWORK = "claude-code"


def execute(given: Json) -> Json:
    components, framework = given["components"], given.get("framework") or _FRAMEWORK
    if not components:
        raise ValueError("components: there are none")
    for place, one in enumerate(components):
        if not isinstance(one, dict) or not str(one.get("name") or "").strip():
            raise ValueError(f"components[{place}]: it has no name")
    names = distinct([slug(one["name"]) for one in components])
    tasks = [
        task
        for one, name in zip(components, names, strict=True)
        for task in _tasks(one, name, framework)
    ]
    return {
        "design_doc": given.get("design_doc") or "",
        "components": components,
        "risks": given.get("risks") or [],
        "tasks": tasks,
        "written_by": "rules",
    }


def _tasks(component: Json, name: str, framework: str) -> list[Json]:
    called = str(component["name"]).strip()
    purpose = str(component.get("purpose") or called)
    interface = str(component.get("interface") or called)
    common = {"framework": framework, "component": called}
    return [
        {
            "id": f"impl-{name}",
            "title": f"Implement {called}"[:MAX_TITLE],
            "depends_on": [],
            "agent_prompt": f"Implement {called}.\nPurpose: {purpose}\nInterface: {interface}",
            **common,
        },
        {
            "id": f"tests-{name}",
            "title": f"Test {called}"[:MAX_TITLE],
            "depends_on": [f"impl-{name}"],
            "agent_prompt": f"Write tests for {called}: {purpose}\nInterface: {interface}",
            **common,
        },
    ]


if __name__ == "__main__":
    alone(execute)
