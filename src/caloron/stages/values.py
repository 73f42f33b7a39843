"""Conversion between the JSON of graphs and our own types, above all the state of a sprint.

Stages of one process pass such values as they are; all others see JSON. A state has one of two
shapes: `{"sprint": …, "tasks": …}` is what our own tick passes on, `{"sprint_id", "tasks": {id:
record}}` is the stateless protocol of `sprint_tick_core`.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import msgspec

from caloron.domain.compat.stateless_protocol import TaskRecord
from caloron.domain.model.feedback import joined as joined_feedback
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.sprint import Sprint, State
from caloron.domain.model.status import FIRST_STEP, Step
from caloron.domain.model.task import ForgeLinks, Supervision, Task, TaskLog, Times
from caloron.domain.reporting.kpis import Kpis
from caloron.domain.reporting.retro_page import FeedbackItem
from caloron.graph.json_text import InProcessValue, Json, unwrap
from caloron.graph.runtime.protocols import Call

T = TypeVar("T")


def to_json(value: Any) -> Json:
    """Convert one of our values to JSON; sets are sorted."""
    return msgspec.json.decode(msgspec.json.encode(value, order="deterministic"))


def in_process(value: Any) -> InProcessValue:
    """Wrap one of our values for the next stage."""
    return InProcessValue(value, to_json)


def in_process_state(state: State) -> InProcessValue:
    """Wrap the state of a sprint for the next stage."""
    return InProcessValue(state, state_json)


def concat(*lists: Json) -> Json:
    """Concatenate lists; the result is an in-process value if all of them are."""
    if all(isinstance(one, InProcessValue) for one in lists):
        return in_process(tuple(item for one in lists for item in one.value))
    return [item for one in lists for item in unwrap(one) or []]


def state_json(state: State) -> Json:
    """Convert a state to JSON, with the order of the plan and the statuses of the tasks."""
    value = to_json(state) | {"order": list(state.tasks)}
    for name, task in state.tasks.items():
        value["tasks"][name]["status"] = str(task.status)
    return value


def decode_as(value: Json, kind: type[T] | Any, what: str) -> T:
    """Decode an in-process value or JSON; a ValueError names what is wrong, and where."""
    if isinstance(value, InProcessValue) and not isinstance(value.value, dict | list):
        return cast(T, value.value)
    try:
        return cast(T, msgspec.convert(unwrap(value), kind, str_keys=True))
    except msgspec.ValidationError as error:
        raise ValueError(f"{what}: {error}") from error


def is_stateless(value: Json) -> bool:
    """True if a state has the shape of the stateless protocol."""
    if isinstance(value, InProcessValue) and isinstance(value.value, State):
        return False
    state = unwrap(value)
    return isinstance(state, dict) and "sprint" not in state


def decode_state(value: Json) -> State:
    """Decode the state of a sprint in either shape; it must not be changed."""
    if isinstance(value, InProcessValue) and isinstance(value.value, State):
        return value.value
    value = unwrap(value)
    if not isinstance(value, dict):
        raise ValueError("state: expected an object with `tasks`")
    if not is_stateless(value):
        return _ordered(decode_as(value, State, "state"), value.get("order"))
    name = value.get("sprint_id")
    sprint = Sprint(id=name if isinstance(name, str) else "", number=1, goal="", phase="running")
    records = decode_records(value).items()
    return State(sprint=sprint, tasks={task: _task(task, record) for task, record in records})


def _ordered(state: State, order: Json) -> State:
    """Sort the tasks as in the plan; tasks that the list does not name come last."""
    plan: list[str] = decode_as(order or [], list[str], "state: order")
    names = [*(name for name in plan if name in state.tasks), *state.tasks]
    tasks = {name: state.tasks[name] for name in dict.fromkeys(names)}
    return msgspec.structs.replace(state, tasks=tasks)


def decode_records(value: Json) -> dict[str, TaskRecord]:
    """Decode the records of the stateless protocol, by task."""
    return decode_as(value.get("tasks") or {}, dict[str, TaskRecord], "tasks")


def _task(name: str, record: TaskRecord) -> Task:
    plan = PlannedTask(
        id=name,
        title=record.title or name,
        agent_prompt=record.agent_prompt or record.title or name,
        depends_on=record.depends_on,
    )
    return Task(
        plan=plan,
        step=FIRST_STEP[record.status],
        links=ForgeLinks(issue=record.issue_number, pull=record.pr_number),
        times=Times(
            started_at=parse_time(record.started_at), completed_at=parse_time(record.completed_at)
        ),
        supervision=Supervision(
            interventions=record.intervention_count, total=record.intervention_count
        ),
    )


def parse_time(value: Json) -> float | None:
    """Parse a time to seconds since 1970: a number, or ISO 8601 text."""
    if value is None or value == "":
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{value!r} is no time: expected seconds or ISO 8601") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def current_time(inputs: Json, call: Call | None) -> float:
    """Return the input `now`, else the time of the clock; then the answer is not cached."""
    now = parse_time(inputs.get("now"))
    if now is not None:
        return now
    if call is not None:
        call.impure = True
    return time.time()


def decode_kpis(value: Json) -> Kpis:
    """Decode the KPIs of a sprint; unknown names are ignored."""
    return decode_as(value if isinstance(value, dict) else {}, Kpis, "kpis")


def decode_feedback(value: Json) -> list[FeedbackItem]:
    """Decode the feedback of agents, without comments that could not be parsed."""
    items: list[Json] = decode_as(value or [], list[Any], "feedback_items")
    # Anything but an object is refused by the conversion.
    parsed = [i for i in items if not isinstance(i, dict) or i.get("parsed") is not None]
    return decode_as(parsed, list[FeedbackItem], "feedback_items")


def state_with_feedback(inputs: Json) -> State:
    """Return the input state with the feedback in it, or a state made of the feedback alone."""
    comments = decode_feedback(inputs.get("feedback_items"))
    if isinstance(unwrap(inputs.get("state")), dict):
        return _with_feedback(decode_state(inputs["state"]), comments)
    name = inputs.get("sprint_id")
    state = State(sprint=Sprint(id=name if isinstance(name, str) else "", number=1, goal=""))
    for number, item in enumerate(comments, 1):
        feedback = item.parsed
        id = feedback.task_id or f"task-{number}"
        done = feedback.self_assessment == "completed"
        plan = PlannedTask(id=id, title=id, agent_prompt=id)
        reason = "" if done else f"its agent says: {feedback.self_assessment}"
        state.tasks[id] = Task(
            plan=plan,
            step=Step.DONE if done else Step.ESCALATED,
            reason=reason,
            links=ForgeLinks(issue=item.issue_number),
            log=TaskLog(feedback=feedback),
        )
    return state


def _with_feedback(state: State, comments: list[FeedbackItem]) -> State:
    """Add feedback from the forge; measured numbers stay as in the state."""
    tasks = dict(state.tasks)
    by_issue = {
        task.links.issue: task.id for task in tasks.values() if task.links.issue is not None
    }
    for item in comments:
        commented = by_issue.get(item.issue_number or 0, "")
        task = tasks.get(item.parsed.task_id) or tasks.get(commented)
        if task is None:
            continue
        known = task.log.feedback
        feedback = msgspec.structs.replace(
            joined_feedback(known, item.parsed),
            tokens_consumed=(known or item.parsed).tokens_consumed,
            time_to_complete_min=(known or item.parsed).time_to_complete_min,
        )
        tasks[task.id] = task.copy()
        tasks[task.id].log.feedback = feedback
    return msgspec.structs.replace(state, tasks=tasks)
