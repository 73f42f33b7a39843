"""The forms of a plan file: our list of tasks, and the original's DAG.

The original's form is one object: `{sprint, agents, tasks, review_policy, escalation}`. Each field
of it that has no effect here gives a warning.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from caloron.domain.model.plan import PlannedTask, PlanProblem, parse_plan

_TASK_FIELDS = tuple(field.name for field in msgspec.structs.fields(PlannedTask))
#: Fields of older forms that are read, too.
_READ_TOO = ("issue_template", "assigned_to")
_TOP = ("sprint", "agents", "tasks", "review_policy", "escalation")
#: Fields that stages of graphs add to a task: its state, and its component.
_NOT_OF_A_PLAN = (
    "status", "agent_id", "reviewer_id", "issue_number", "pr_number", "started_at",
    "completed_at", "intervention_count", "component",
)  # fmt: skip
#: Why fields of the original have no effect here.
_UNUSED = {
    "tasks.reviewed_by": "reviews are made by the sprint's own reviewer",
    "tasks.github_issue_number": "the sprint opens an issue of its own",
    "sprint.id": "sprints are numbered here",
    "sprint.goal": "the goal on the command line counts",
    "sprint.start": "a sprint starts when it is started",
    "sprint.max_duration_hours": "there is no such limit; `--budget` limits what it costs",
    "review_policy.required_approvals": "set `require_human_review` for a person's approval",
    "review_policy.auto_merge": "what is approved and verified is merged",
    "review_policy.max_review_cycles": "set it with `caloron config set max_fix_rounds N`",
    "escalation.stall_threshold_minutes": "set it with `caloron config set stall_threshold_m N`",
    "escalation.supervisor_id": "the supervisor is part of the sprint",
    "escalation.human_contact": "`caloron inbox` and an issue tell the person",
}
#: Values that describe the behaviour of this program.
_AS_HERE = {"review_policy.required_approvals": 1, "review_policy.auto_merge": True}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A valid plan, and warnings about fields without effect."""

    tasks: tuple[PlannedTask, ...]
    warnings: tuple[str, ...] = ()


def parse_plan_file(raw: object, *, frameworks: tuple[str, ...] = ()) -> Plan:
    """Return the plan in a file of either form, or raise a `PlanProblem` with every error."""
    warnings: list[str] = []
    if isinstance(raw, Mapping) and isinstance(raw.get("tasks"), list):
        raw = _listed(raw, warnings)
    elif isinstance(raw, list):
        raw = [_without_unknown(item, n, warnings) for n, item in enumerate(raw)]
    return Plan(tasks=parse_plan(raw, frameworks=frameworks), warnings=tuple(warnings))


def parse_plan_output(raw: object, *, frameworks: tuple[str, ...] = ()) -> Plan:
    """Return the plan in the output of a planning graph: a list of tasks, or an object with one.

    `tasks` is a list, or an object of tasks by their ids; both may also be in a `dag`.
    """
    if isinstance(raw, Mapping) and isinstance(raw.get("dag"), Mapping | list):
        raw = raw["dag"]
    tasks = listed_tasks(raw)
    if not isinstance(tasks, list):
        raise PlanProblem(["the graph gave no tasks: expected `tasks`, or a `dag` with them"])
    return parse_plan_file([_only_planned(task) for task in tasks], frameworks=frameworks)


def listed_tasks(plan: Any) -> Any:
    """Return the tasks of a plan as a list, if they are a list or an object of tasks by id."""
    tasks = plan.get("tasks") if isinstance(plan, Mapping) else plan
    if not isinstance(tasks, Mapping):
        return tasks
    return [_named(name, record) for name, record in tasks.items()]


def _named(name: Any, record: Any) -> Any:
    """Return a task of a sprint's state, which may have no prompt, with its title as prompt."""
    if not isinstance(record, Mapping):
        return record
    title = record.get("title", name)
    return {"id": name, "title": title, "agent_prompt": title, **record}


def _only_planned(task: Any) -> Any:
    """Return the task without fields that only a design or a running sprint uses."""
    if not isinstance(task, Mapping):
        return task
    return {k: v for k, v in task.items() if k not in _NOT_OF_A_PLAN and v is not None}


def _listed(raw: Mapping[Any, Any], warnings: list[str]) -> list[Any]:
    """Return the tasks of the original's object in the form of our list."""
    errors: list[str] = []
    agents = _agents(raw.get("agents", []), errors, warnings)
    tasks = []
    for number, item in enumerate(raw["tasks"]):
        if isinstance(item, Mapping):
            _check_agents(item, f"tasks[{number}]", agents, errors)
            tasks.append(_task(item, number, agents, warnings))
        else:
            tasks.append(item)
    if errors:
        raise PlanProblem(errors)
    for section in ("sprint", "review_policy", "escalation"):
        _name_unused(section, raw.get(section), (), warnings)
    _name_unused("", raw, _TOP, warnings)
    return tasks


def _name_unused(where: str, content: object, used: Collection[str], warnings: list[str]) -> None:
    """Warn about the fields of an object that have no effect."""
    if content is None:
        return
    if not isinstance(content, Mapping):
        warnings.append(f"{where}: expected an object; it has no effect")
        return
    for name, value in content.items():
        field = f"{where}.{name}".removeprefix(".")
        known = re.sub(r"\[\d+\]", "", field)
        if name not in used and (known not in _AS_HERE or _AS_HERE[known] != value):
            warnings.append(f"{field}: {_UNUSED.get(known, 'not known')}; it has no effect")


def _agents(raw: object, errors: list[str], warnings: list[str]) -> dict[str, Mapping[Any, Any]]:
    if not isinstance(raw, list):
        errors.append("agents: expected a list of agents")
        return {}
    agents: dict[str, Mapping[Any, Any]] = {}
    for number, agent in enumerate(raw):
        where = f"agents[{number}]"
        name = agent.get("id") if isinstance(agent, Mapping) else None
        if not isinstance(name, str) or not name:
            errors.append(f"{where}.id: expected the name of an agent")
        elif name in agents:
            errors.append(f"{where}.id: {name!r} is there twice")
        else:
            agents[name] = agent
            _name_unused(where, agent, ("id", "role", "spec"), warnings)
            read = ("framework", "extra_instructions")
            _name_unused(f"{where}.spec", agent.get("spec"), read, warnings)
    return agents


def _check_agents(
    item: Mapping[Any, Any], where: str, agents: Mapping[str, Mapping[Any, Any]], errors: list[str]
) -> None:
    for field in ("assigned_to", "reviewed_by"):
        name = item.get(field)
        if name is None or (isinstance(name, str) and name in agents):
            continue
        known = ", ".join(agents) or "none"
        errors.append(f"{where}.{field}: {name!r} is none of the agents ({known})")


def _task(
    item: Mapping[Any, Any],
    number: int,
    agents: Mapping[str, Mapping[Any, Any]],
    warnings: list[str],
) -> dict[Any, Any]:
    task: dict[Any, Any] = _without_unknown(item, number, warnings)
    if "agent_prompt" not in task and "issue_template" in item:
        task["agent_prompt"] = item["issue_template"]
    spec = agents.get(str(item.get("assigned_to")), {}).get("spec")
    if isinstance(spec, Mapping):
        if spec.get("framework") and not task.get("framework"):
            task["framework"] = spec["framework"]
        extra, prompt = spec.get("extra_instructions"), task.get("agent_prompt")
        if isinstance(extra, str) and extra.strip() and isinstance(prompt, str):
            task["agent_prompt"] = f"{prompt}\n\n{extra.strip()}"
    return task


def _without_unknown(item: Any, number: int, warnings: list[str]) -> Any:
    """Return the task without unused fields; misspelt ones stay, so that they are refused."""
    if not isinstance(item, Mapping):
        return item
    _name_unused(f"tasks[{number}]", item, (*_TASK_FIELDS, *_READ_TOO), warnings)
    return {k: v for k, v in item.items() if k not in _READ_TOO and f"tasks.{k}" not in _UNUSED}
