"""Tasks for components: by a model where one is configured, else the thing and then its tests."""

from __future__ import annotations

from caloron.domain.plan import MAX_TITLE
from caloron.graph.jsontext import Json
from caloron.graph.protocols import Call
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.names import distinct, slug
from caloron.stages.catalogue.planned import LONGEST_ID, MOST_PLANNED, planned
from caloron.stages.catalogue.with_model import Unusable, written

_FRAMEWORK = "claude-code"


def execute(given: Json, call: Call | None = None) -> Json:
    components, framework = given["components"], given.get("framework")
    if framework is None:
        framework = _FRAMEWORK
    if not components:
        raise ValueError("components: there are none")
    for place, one in enumerate(components):
        if not isinstance(one, dict) or not str(one.get("name") or "").strip():
            raise ValueError(f"components[{place}]: it has no name")
    passed_on = {
        "design_doc": given.get("design_doc") or "",
        "components": components,
        "risks": given.get("risks") or [],
    }
    known = {str(one["name"]).strip() for one in components}
    return written(
        "dev_po",
        {
            "The design": passed_on["design_doc"],
            "The components": components,
            "The risks": passed_on["risks"] or "",
        },
        lambda answer, _model: passed_on | {"tasks": _by_model(answer, known, framework)},
        lambda: passed_on | {"tasks": _by_rules(components, framework)},
        call=call,
        most=MOST_PLANNED,
        longest=LONGEST_ID,
    )


def _by_model(answer: dict[str, Json], known: set[str], framework: str) -> list[Json]:
    tasks = planned(answer)
    for task in tasks:
        component = task.get("component")
        if component is not None and component not in known:
            raise Unusable(f"the task {task['id']!r} is of no known component: {component!r}")
    return [task | {"framework": framework} for task in tasks]


def _by_rules(components: list[Json], framework: str) -> list[Json]:
    names = distinct([slug(one["name"]) for one in components])
    return [
        task
        for one, name in zip(components, names, strict=True)
        for task in _tasks(one, name, framework)
    ]


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
