"""Data of graphs as our own types, and back: the sprint's state above all.

Stages of one process hand such values on as they are; whoever else gets them sees JSON. A state
comes in one of two shapes. `{"sprint": …, "tasks": …}` is what our own tick passes on. The
other is that of the tick's file: `{"sprint_id", "tasks": {id: record}}` with flat records.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from caloron.domain.feedback import Feedback
from caloron.domain.feedback import joined as joined_feedback
from caloron.domain.flat import Record
from caloron.domain.plan import PlannedTask
from caloron.domain.retro import Kpis
from caloron.domain.sprint import Sprint, State, Task
from caloron.domain.status import Status
from caloron.domain.turn import Decision
from caloron.graph.held import Held, opened
from caloron.graph.jsontext import Json
from caloron.graph.protocols import Call
from caloron.store import log

T = TypeVar("T")


def plain(value: Any) -> Json:
    """A value of ours as JSON; what has no order of its own is sorted."""
    return msgspec.json.decode(msgspec.json.encode(value, order="deterministic"))


def held(value: Any) -> Held:
    """A value of ours, for the next stage."""
    return Held(value, plain)


def held_state(state: State) -> Held:
    """The state of a sprint, for the next stage."""
    return Held(state, state_json)


def joined(*lists: Json) -> Json:
    """One list after the other, held as long as all of them are."""
    if all(isinstance(one, Held) for one in lists):
        return held(tuple(item for one in lists for item in one.value))
    return [item for one in lists for item in opened(one) or []]


def state_json(state: State) -> Json:
    """A state as JSON, in which the order of members says nothing: the plan's is a list."""
    return plain(state) | {"order": list(state.tasks)}


def read(value: Json, kind: type[T] | Any, what: str) -> T:
    """A value of ours that was held or is told as JSON, or an error: what of it is wrong where."""
    if isinstance(value, Held) and not isinstance(value.value, dict | list):
        kept: T = value.value
        return kept
    try:
        found: T = msgspec.convert(opened(value), kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise ValueError(f"{what}: {error}") from error
    return found


def is_flat(value: Json) -> bool:
    """Whether a state has the shape of the tick's file."""
    if isinstance(value, Held) and isinstance(value.value, State):
        return False
    told = opened(value)
    return isinstance(told, dict) and "sprint" not in told


def state_of(value: Json) -> State:
    """The state of a sprint, in either shape; it is not to be changed."""
    if isinstance(value, Held) and isinstance(value.value, State):
        return value.value
    value = opened(value)
    if not isinstance(value, dict):
        raise ValueError("state: expected an object with `tasks`")
    if not is_flat(value):
        return _ordered(read(value, State, "state"), value.get("order"))
    name = value.get("sprint_id")
    sprint = Sprint(id=name if isinstance(name, str) else "", number=1, goal="", phase="running")
    return State(sprint=sprint, tasks={one: _task(one, r) for one, r in records_of(value).items()})


def _ordered(state: State, told: Json) -> State:
    """The tasks as the plan has them; those that the list does not name come after it."""
    order: list[str] = read(told or [], list[str], "state: order")
    names = [*(name for name in order if name in state.tasks), *state.tasks]
    tasks = {name: state.tasks[name] for name in dict.fromkeys(names)}
    return msgspec.structs.replace(state, tasks=tasks)


def records_of(value: Json) -> dict[str, Record]:
    """The flat records of a state, by task."""
    found: dict[str, Record] = read(value.get("tasks") or {}, dict[str, Record], "tasks")
    return found


def _task(name: str, record: Record) -> Task:
    plan = PlannedTask(
        id=name,
        title=record.title or name,
        agent_prompt=record.agent_prompt or record.title or name,
        depends_on=record.depends_on,
    )
    return Task(
        plan=plan,
        status=record.status,
        issue=record.issue_number,
        pull=record.pr_number,
        started_at=moment(record.started_at),
        completed_at=moment(record.completed_at),
        interventions=record.intervention_count,
        steps=record.intervention_count,
    )


def moment(told: Json) -> float | None:
    """A time as seconds since 1970: a number, or text in the form of ISO 8601."""
    if told is None or told == "":
        return None
    if isinstance(told, int | float) and not isinstance(told, bool):
        return float(told)
    try:
        found = datetime.fromisoformat(told)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{told!r} is no time: expected seconds or ISO 8601") from error
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def now_of(given: Json, call: Call | None) -> float:
    """The time that a stage is given, or that of the clock; then its answer is not remembered."""
    told = moment(given.get("now"))
    if told is not None:
        return told
    if call is not None:
        call.impure = True
    return time.time()


def kpis_of(value: Json) -> Kpis:
    """The numbers of a sprint; names that are not ours are left aside."""
    told = value if isinstance(value, dict) else {}
    kpis: Kpis = read({k: v for k, v in told.items() if k in Kpis.__struct_fields__}, Kpis, "kpis")
    return kpis


def log_problems(before: State, decided: Decision) -> None:
    """Log each rule that failed, once: it may fail again on every tick."""
    known = {before.sprint.halted, *(task.reason for task in before.tasks.values())}
    for problem in decided.problems:
        if str(problem) not in known:
            error = problem.__cause__ or problem
            log.error("a rule failed", error=error, rule=problem.rule, task=problem.task)


class FeedbackSaid(msgspec.Struct, kw_only=True):
    """One comment with feedback, as `collect_sprint_feedback` tells of it."""

    issue_number: int | None = None
    author: str = ""
    is_parsed_yaml: bool = True
    parsed: Feedback | None = None


def feedback_of(value: Json) -> list[FeedbackSaid]:
    """What agents said, without what could not be read."""
    items: list[FeedbackSaid] = read(value or [], list[FeedbackSaid], "feedback_items")
    return [item for item in items if item.parsed is not None]


def state_with_feedback(given: Json) -> State:
    """The state that is given with what agents said in it, or one in which there is only that."""
    said = feedback_of(given.get("feedback_items"))
    if isinstance(opened(given.get("state")), dict):
        return _told(state_of(given["state"]), said)
    name = given.get("sprint_id")
    state = State(sprint=Sprint(id=name if isinstance(name, str) else "", number=1, goal=""))
    for number, item in enumerate(said, 1):
        parsed = item.parsed
        assert parsed is not None
        id = parsed.task_id or f"task-{number}"
        done = parsed.self_assessment == "completed"
        plan = PlannedTask(id=id, title=id, agent_prompt=id)
        status = Status.DONE if done else Status.ESCALATED
        reason = "" if done else f"its agent says: {parsed.self_assessment}"
        state.tasks[id] = Task(
            plan=plan, status=status, reason=reason, issue=item.issue_number, feedback=parsed
        )
    return state


def _told(state: State, said: list[FeedbackSaid]) -> State:
    """Add what was said on the forge; what is measured stays as the state has it."""
    tasks = dict(state.tasks)
    by_issue = {task.issue: task.id for task in tasks.values() if task.issue is not None}
    for item in said:
        assert item.parsed is not None
        commented = by_issue.get(item.issue_number or 0, "")
        task = tasks.get(item.parsed.task_id) or tasks.get(commented)
        if task is None:
            continue
        known = task.feedback
        feedback = msgspec.structs.replace(
            joined_feedback(known, item.parsed),
            tokens_consumed=(known or item.parsed).tokens_consumed,
            time_to_complete_min=(known or item.parsed).time_to_complete_min,
        )
        tasks[task.id] = msgspec.structs.replace(task, feedback=feedback)
    return msgspec.structs.replace(state, tasks=tasks)
