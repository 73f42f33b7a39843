"""The phases of planning: design, architecture, tasks, reviews, and the plan made of them."""

from __future__ import annotations

import re

from caloron.domain.model.plan import (
    DEFAULT_FRAMEWORK,
    MAX_PROMPT,
    MAX_TASKS,
    MAX_TITLE,
    parse_plan,
)
from caloron.graph.json_text import Json
from caloron.graph.runtime.protocols import Call
from caloron.ports import Model
from caloron.stages.model_answer import (
    MAX_ID,
    MAX_PLANNED,
    UnusableAnswer,
    answer_with_model,
    distinct,
    parse_planned_tasks,
    slug,
)

_REVIEWER = "reviewer-1"
_DEFAULT_AGENTS = 2
_BREAK = re.compile(r"[;,\n]+|\.+(?=\s|$)")
_BULLET = re.compile(r"^(?:[-*•]|\d+[.)])\s+|^(?:and|then|and then)\s+", re.IGNORECASE)


def generate_sprint_dag(inputs: Json, call: Call | None = None) -> Json:
    """Return a first plan from a brief: by a model if one is configured, else a task per clause."""
    brief, agents = inputs["brief"], inputs.get("num_agents")
    number = _DEFAULT_AGENTS if agents is None else int(agents)
    if number < 1:
        raise ValueError(f"num_agents is {number}: at least 1 is needed")
    if not brief.strip():
        raise ValueError("brief: it names nothing that is to be done")
    name = f"sprint-{slug(brief)[:20].strip('-')}".rstrip("-")

    def dag(tasks: list[Json]) -> dict[str, Json]:
        records = [_task_record(task, place % number + 1) for place, task in enumerate(tasks)]
        return {"dag": {"sprint_id": name, "tasks": {one["id"]: one for one in records}}}

    return answer_with_model(
        "generate_sprint_dag",
        {"The brief": brief, "The repository": inputs.get("repo_context") or ""},
        lambda answer, _model: dag(parse_planned_tasks(answer)),
        lambda: dag(_plan_by_rules(brief)),
        call=call,
        agents=number,
        most=MAX_PLANNED,
        longest=MAX_ID,
    )


def _plan_by_rules(brief: str) -> list[Json]:
    """Make a task of each clause; each depends on the task before."""
    clauses = [c for part in _BREAK.split(brief) if (c := _BULLET.sub("", part.strip()).strip())]
    if not clauses:
        raise ValueError("brief: it names nothing that is to be done")
    if len(clauses) > MAX_TASKS:
        raise ValueError(f"brief: {len(clauses)} tasks; at most {MAX_TASKS} are allowed")
    return [
        {
            "id": f"task-{place}",
            "title": clause[:MAX_TITLE],
            "agent_prompt": clause,
            "depends_on": [f"task-{place - 1}"] if place > 1 else [],
        }
        for place, clause in enumerate(clauses, 1)
    ]


def _task_record(task: Json, agent: int) -> Json:
    return {
        "id": task["id"],
        "title": task["title"],
        "agent_prompt": task["agent_prompt"],
        "status": "Pending",
        "depends_on": task["depends_on"],
        "agent_id": f"agent-{agent}",
        "reviewer_id": _REVIEWER,
        "issue_number": None,
        "pr_number": None,
        "started_at": None,
        "completed_at": None,
        "intervention_count": 0,
    }


def design_po(inputs: Json) -> Json:
    """Start the phases with a goal and the existing design."""
    goal = inputs["goal"]
    if not goal.strip():
        raise ValueError("goal: it is empty")
    return {
        "goal": goal,
        "constraints": inputs.get("constraints") or "",
        "design_brief": inputs.get("design_brief") or "",
        "components_inventory": inputs.get("components_inventory") or [],
    }


_MAX_COMPONENTS = 5
_MAX_MODEL_COMPONENTS = 20
_COMPONENT_NAME = re.compile(r"\b[A-Z][a-zA-Z_]{2,}\b")
_CAMEL = re.compile(r"[a-z][A-Z]|_|^[A-Z]{2}")
_SENTENCE_END = re.compile(r"(?:^|[.!?:\n])\s*$")


def architect_po(inputs: Json, call: Call | None = None) -> Json:
    """Return components and risks of a goal: by a model if one is configured, else by rules."""
    goal, constraints = inputs["goal"], inputs.get("constraints") or ""
    if not goal.strip():
        raise ValueError("goal: it is empty")
    return answer_with_model(
        "architect_po",
        {"The goal": goal, "The constraints": constraints},
        _design_by_model,
        lambda: _design_by_rules(goal, constraints),
        call=call,
    )


def _design_by_model(answer: dict[str, Json], _model: Model) -> dict[str, Json]:
    components = answer.get("components")
    if not isinstance(components, list) or not 0 < len(components) <= _MAX_MODEL_COMPONENTS:
        raise UnusableAnswer(f"`components` must be a list of 1 to {_MAX_MODEL_COMPONENTS} objects")
    design = {name: answer.get(name) for name in ("design_doc", "components", "risks")}
    if not str(design["design_doc"] or "").strip():
        raise UnusableAnswer("`design_doc` is empty")
    for index, component in enumerate(components):
        for name in ("name", "purpose", "interface"):
            if not isinstance(component, dict) or not str(component.get(name) or "").strip():
                raise UnusableAnswer(f"`components[{index}].{name}` is empty")
    names = [str(component["name"]).strip().lower() for component in components]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UnusableAnswer(f"there are two components called {min(twice)!r}")
    return design


def _design_by_rules(goal: str, constraints: str) -> dict[str, Json]:
    names = _component_names(goal) or ["Core"]
    components = [
        {"name": name, "purpose": f"{name}: its part of “{goal.strip()[:200]}”", "interface": name}
        for name in names
    ]
    risks = []
    if len(names) == 1:
        risks.append("There is only one component: parts of the goal may be hidden in it.")
    if "auth" in goal.lower() and "security" not in f"{goal} {constraints}".lower():
        risks.append("The goal is about authentication and nothing is said of security.")
    document = _design_document(goal, constraints, names, risks)
    return {"design_doc": document, "components": components, "risks": risks}


def _component_names(goal: str) -> list[str]:
    """Return capitalised words; one that only begins a sentence is no name."""
    names: dict[str, str] = {}
    for match in _COMPONENT_NAME.finditer(goal):
        begins = _SENTENCE_END.search(goal[: match.start()]) is not None
        if not begins or _CAMEL.search(match[0]):
            names.setdefault(match[0].lower(), match[0])
    return list(names.values())[:_MAX_COMPONENTS]


def _design_document(goal: str, constraints: str, names: list[str], risks: list[str]) -> str:
    parts = [f"# Design — {goal.strip().splitlines()[0][:80]}", goal.strip()]
    if constraints.strip():
        parts.append(f"## Constraints\n\n{constraints.strip()}")
    parts.append("## Components\n\n" + "\n".join(f"- {name}" for name in names))
    if risks:
        parts.append("## Risks\n\n" + "\n".join(f"- {risk}" for risk in risks))
    return "\n\n".join(parts) + "\n"


def dev_po(inputs: Json, call: Call | None = None) -> Json:
    """Return tasks for components: by a model if one is configured, else by rules.

    The rules make two tasks per component: its implementation, and then its tests.
    """
    components, framework = inputs["components"], _framework(inputs)
    if not components:
        raise ValueError("components: there are none")
    for place, one in enumerate(components):
        if not isinstance(one, dict) or not str(one.get("name") or "").strip():
            raise ValueError(f"components[{place}]: it has no name")
    passed_on = {
        "design_doc": inputs.get("design_doc") or "",
        "components": components,
        "risks": inputs.get("risks") or [],
    }
    known = {str(one["name"]).strip() for one in components}
    return answer_with_model(
        "dev_po",
        {
            "The design": passed_on["design_doc"],
            "The components": components,
            "The risks": passed_on["risks"] or "",
        },
        lambda answer, _model: passed_on | {"tasks": _tasks_by_model(answer, known, framework)},
        lambda: passed_on | {"tasks": _tasks_by_rules(components, framework)},
        call=call,
        most=MAX_PLANNED,
        longest=MAX_ID,
    )


def _framework(inputs: Json) -> str:
    framework: str | None = inputs.get("framework")
    return DEFAULT_FRAMEWORK if framework is None else framework


def _tasks_by_model(answer: dict[str, Json], known: set[str], framework: str) -> list[Json]:
    tasks = parse_planned_tasks(answer)
    for task in tasks:
        component = task.get("component")
        if component is not None and component not in known:
            raise UnusableAnswer(f"the task {task['id']!r} is of no known component: {component!r}")
    return [task | {"framework": framework} for task in tasks]


def _tasks_by_rules(components: list[Json], framework: str) -> list[Json]:
    names = distinct([slug(one["name"]) for one in components])
    return [
        task
        for one, name in zip(components, names, strict=True)
        for task in _component_tasks(one, name, framework)
    ]


def _component_tasks(component: Json, name: str, framework: str) -> list[Json]:
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


_TEST_FOCUS = "whether the tests can fail, and cover what the design asks for"
_CODE_FOCUS = "whether it does what the design asks for, and nothing that it does not"


def review_po(inputs: Json) -> Json:
    """Return one check for each task: the focus of its reviewer."""
    tasks, framework = inputs["tasks"], _framework(inputs)
    if not tasks:
        raise ValueError("tasks: there are none")
    return {
        "design_doc": inputs.get("design_doc") or "",
        "tasks": tasks,
        "review_checks": [
            _review_check(place, task, framework) for place, task in enumerate(tasks)
        ],
    }


def _review_check(place: int, task: Json, framework: str) -> Json:
    name = task.get("id") if isinstance(task, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError(f"tasks[{place}]: it has no id")
    focus = _TEST_FOCUS if name.startswith("tests-") else _CODE_FOCUS
    title = task.get("title") or name
    return {
        "id": f"review-{name}",
        "reviews": name,
        "focus": focus,
        "agent_prompt": f"Look at what the task {name} ({title}) put on main: {focus}.",
        "framework": framework,
    }


_DESIGN_HEADING = "\n\nThe design of the whole sprint, of which this task is one part:\n\n"
_DESIGN_CUT = "\n… (the design is longer; the rest is left out)\n"


def phases_to_sprint_tasks(inputs: Json) -> Json:
    """Return the plan of a sprint from its phases: the tasks, and a check behind each of them."""
    tasks, checks = inputs["tasks"], inputs.get("review_checks") or []
    design = str(inputs.get("design_doc") or "").strip()
    checking = (_check_task(place, check) for place, check in enumerate(checks))
    planned = [_with_design(task, design) for task in (*tasks, *checking)]
    # Raises with all errors at once: repeated ids, unknown dependencies, cycles.
    parse_plan(planned)
    return {"tasks": planned}


def _with_design(task: Json, design: str) -> Json:
    """Add the design to the prompt of a task: its agent sees nothing else of the phases."""
    prompt = task.get("agent_prompt") if isinstance(task, dict) else None
    if not design or not isinstance(prompt, str):
        return task
    whole = f"{prompt}{_DESIGN_HEADING}{design}"
    if len(whole) > MAX_PROMPT:
        whole = whole[: MAX_PROMPT - len(_DESIGN_CUT)] + _DESIGN_CUT
    return task | {"agent_prompt": whole}


def _check_task(place: int, check: Json) -> Json:
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
