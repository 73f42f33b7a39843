"""A plan: the planned tasks of a sprint, and its validation."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import Any, Literal

import msgspec

from caloron.ids import ID_WORDS, is_valid_id

MAX_TASKS = 200
MAX_TITLE = 200
MAX_PROMPT = 64_000
#: The framework of planned tasks and of harnesses that name none.
DEFAULT_FRAMEWORK = "claude-code"
#: Names of the sprint's own work and agents, which stand where the id of a task does.
RESERVED = frozenset({"baseline", "planner", "planner-1", "po", "retro", "retro-1", "reviewer-1"})

#: The beginning of a list of objects. Each is parsed to its end, so there is a limit.
_LIST_OF_OBJECTS = re.compile(r"\[(?=\s*\{)")
_MAX_BEGINNINGS = 100

Kind = Literal["change", "check"]


class PlannedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a plan; during the sprint only a person changes its text."""

    id: str
    title: str
    agent_prompt: str
    depends_on: tuple[str, ...] = ()
    kind: Kind = "change"
    #: A person has to approve the merge, also where the project does not ask for it.
    require_human_review: bool = False
    framework: str = ""
    required_skills: tuple[str, ...] = ()
    acceptance: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


class PlanProblem(ValueError):
    """A plan that cannot be run, with all its errors."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("; ".join(errors))
        self.errors = tuple(errors)


def find_plan(answer: str) -> list[Any]:
    """Return the first JSON list of objects in a planner's answer."""
    decoder = json.JSONDecoder()
    for start in (m.start() for m in islice(_LIST_OF_OBJECTS.finditer(answer), _MAX_BEGINNINGS)):
        try:
            value, _ = decoder.raw_decode(answer, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, list) and value and all(isinstance(x, dict) for x in value):
            return value
    raise PlanProblem(["the answer holds no JSON list of task objects"])


def parse_plan(raw: object, *, frameworks: tuple[str, ...] = ()) -> tuple[PlannedTask, ...]:
    """Return the tasks of a plan, or raise a `PlanProblem` that names every error."""
    if not isinstance(raw, list) or not raw:
        raise PlanProblem(["a plan is a JSON list of at least one task object"])
    if len(raw) > MAX_TASKS:
        raise PlanProblem([f"the plan has {len(raw)} tasks; at most {MAX_TASKS} are allowed"])
    errors: list[str] = []
    tasks = [t for n, item in enumerate(raw) if (t := _parse_task(item, n, errors))]
    if not errors:
        errors = _structural_errors(tasks, frameworks)
    if errors:
        raise PlanProblem(errors)
    return tuple(tasks)


def _parse_task(item: object, position: int, errors: list[str]) -> PlannedTask | None:
    name = item.get("id") if isinstance(item, dict) else None
    where = f"task {name!r}" if isinstance(name, str) else f"task {position + 1}"
    try:
        task = msgspec.convert(item, PlannedTask)
    except msgspec.ValidationError as error:
        errors.append(f"{where}: {error}")
        return None
    errors += [f"{where}: {problem}" for problem in _misspelt(item)]
    if task.id in RESERVED:
        errors.append(f"{where}: the id `{task.id}` is used by the sprint itself; choose another")
    if not is_valid_id(task.id):
        errors.append(f"{where}: an id is {ID_WORDS}")
    for field, text, limit in (
        ("title", task.title, MAX_TITLE),
        ("agent_prompt", task.agent_prompt, MAX_PROMPT),
    ):
        if not text.strip():
            errors.append(f"{where}: {field} is empty")
        elif len(text) > limit:
            errors.append(f"{where}: {field} has {len(text)} characters; at most {limit}")
        elif "\0" in text:
            errors.append(f"{where}: {field} holds a NUL character")
    return task


def _misspelt(item: object) -> list[str]:
    """Return errors for unknown fields that look like a misspelt one of ours."""
    known = [field.name for field in msgspec.structs.fields(PlannedTask)]
    keys = [str(key) for key in item if key not in known] if isinstance(item, dict) else []
    close = {key: difflib.get_close_matches(key, known, 1, 0.8) for key in keys}
    return [f"unknown field {k!r}; did you mean {v[0]!r}?" for k, v in close.items() if v]


def _structural_errors(tasks: list[PlannedTask], frameworks: tuple[str, ...]) -> list[str]:
    ids = [task.id for task in tasks]
    errors = [
        f"task {i!r} appears {ids.count(i)} times" for i in sorted(set(ids)) if ids.count(i) > 1
    ]
    for task in tasks:
        for dependency in task.depends_on:
            if dependency == task.id:
                errors.append(f"task {task.id!r} depends on itself")
            elif dependency not in ids:
                errors.append(f"task {task.id!r} depends on unknown task {dependency!r}")
        if frameworks and task.framework and task.framework not in frameworks:
            known = ", ".join(frameworks)
            errors.append(
                f"task {task.id!r}: unknown framework {task.framework!r} (known: {known})"
            )
    if not errors and (cycle := find_cycle(tasks)):
        errors.append(f"the dependencies form a cycle: {' → '.join(cycle)}")
    return errors


def find_cycle(tasks: Iterable[PlannedTask]) -> list[str]:
    """Return a cycle, with its first task again at the end; empty: there is none."""
    try:
        TopologicalSorter({task.id: task.depends_on for task in tasks}).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        # The library lists each task before those that depend on it.
        return cycle[::-1]
    return []


def chain_lengths(tasks: Iterable[PlannedTask]) -> dict[str, int]:
    """Return the length of the longest chain that begins with each task."""
    needs = {task.id: task.depends_on for task in tasks}
    lengths = dict.fromkeys(needs, 1)
    for task in reversed([*TopologicalSorter(needs).static_order()]):
        for dependency in needs[task]:
            lengths[dependency] = max(lengths[dependency], lengths[task] + 1)
    return lengths
