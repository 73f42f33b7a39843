"""The tasks of a sprint: validate, evaluate, count, and turn decisions into journal rows."""

from __future__ import annotations

import msgspec

from caloron.domain.compat.plan_forms import listed_tasks
from caloron.domain.compat.stateless_protocol import (
    ForgeEvent,
    TaskRecord,
    action_summary,
    evaluate_stateless,
    event_of_snapshot,
)
from caloron.domain.model.effects import Action, describe_action
from caloron.domain.model.facts import Fact
from caloron.domain.model.plan import PlanProblem, parse_plan
from caloron.domain.model.snapshots import Snapshot
from caloron.domain.model.status import Status
from caloron.domain.rules.evaluate import evaluate
from caloron.graph.json_text import Json, unwrap
from caloron.graph.runtime.protocols import Call
from caloron.ledger.state_file import iso
from caloron.ledger.tick_context import log_problems
from caloron.stages.values import (
    current_time,
    decode_as,
    decode_records,
    decode_state,
    in_process,
    in_process_state,
    is_stateless,
    parse_time,
    to_json,
)


def dag_validate(inputs: Json) -> Json:
    """Return everything that is wrong with a plan, before any side effect."""
    try:
        parse_plan(listed_tasks(inputs["dag"]))
    except PlanProblem as problem:
        return {"valid": False, "errors": list(problem.errors)}
    return {"valid": True, "errors": []}


_STALL_M = 20.0


def dag_evaluate(inputs: Json, call: Call | None = None) -> Json:
    """Return the next state of a sprint and the actions that follow from the events.

    A state of flat records goes through the stateless protocol: events or snapshots of a forge move
    its tasks, and the host performs the actions.
    """
    now = current_time(inputs, call)
    if is_stateless(inputs["state"]):
        return _evaluate_records(inputs, now)
    facts: tuple[Fact, ...] = decode_as(inputs.get("events") or (), tuple[Fact, ...], "events")
    before = decode_state(inputs["state"])
    decided = evaluate(before, facts, now)
    log_problems(before, decided)
    return {
        "state": in_process_state(decided.state),
        "actions": in_process(decided.actions),
        "moves": in_process(decided.moves),
    }


def _evaluate_records(inputs: Json, now: float) -> Json:
    state, minutes = unwrap(inputs["state"]), inputs.get("stall_threshold_m")
    before = {name: _with_times(record) for name, record in decode_records(state).items()}
    events = [
        event for value in unwrap(inputs.get("events")) or [] if (event := _forge_event(value))
    ]
    stall_s = (_STALL_M if minutes is None else minutes) * 60
    after, actions = evaluate_stateless(before, events, now, stall_s)
    tasks = {
        # Other fields of a record belong to the host, and are kept.
        name: state["tasks"][name] | _record_json(record, state["tasks"][name])
        for name, record in after.items()
    }
    moved = [
        {"task": name, "old": str(before[name].status), "new": str(record.status)}
        for name, record in after.items()
        if record.status is not before[name].status
    ]
    return {"state": {**state, "tasks": tasks}, "actions": actions, "moves": moved}


def _with_times(record: TaskRecord) -> TaskRecord:
    times = {
        "started_at": parse_time(record.started_at),
        "completed_at": parse_time(record.completed_at),
    }
    return msgspec.structs.replace(record, **times)


def _record_json(record: TaskRecord, before: Json) -> Json:
    """Return a record as JSON, without optional fields that were not there and have defaults."""
    fields = to_json(record)
    for name in ("started_at", "completed_at"):
        fields[name] = iso(parse_time(fields[name]))
    defaults = to_json(TaskRecord())
    kept = {name for name in fields if name in _ALWAYS or name in before}
    return {
        name: value for name, value in fields.items() if name in kept or value != defaults[name]
    }


def _forge_event(value: Json) -> ForgeEvent | None:
    if isinstance(value, dict) and value.get("type") in _SNAPSHOTS:
        return event_of_snapshot(decode_as(value, Snapshot, "events"))
    return decode_as(value, ForgeEvent, "events")


_ALWAYS = ("status", "issue_number", "pr_number", "started_at", "completed_at",
           "intervention_count")  # fmt: skip
_SNAPSHOTS = ("issue", "pull", "review", "comment", "branch")


def dag_is_complete(inputs: Json) -> Json:
    """Return the progress of a sprint; complete means that no task can move without a person."""
    statuses = [task.status for task in decode_state(inputs["state"]).tasks.values()]
    done = statuses.count(Status.DONE)
    blocked = statuses.count(Status.BLOCKED) + statuses.count(Status.ESCALATED)
    cancelled = statuses.count(Status.CANCELLED)
    return {
        "complete": bool(statuses) and done + blocked + cancelled == len(statuses),
        "total": len(statuses),
        "done": done,
        "blocked": blocked,
        "cancelled": cancelled,
    }


def unblocked_tasks(inputs: Json) -> Json:
    """Return the tasks that could start now."""
    state = decode_state(inputs["state"])
    # A record of the stateless protocol names its agent.
    records = decode_records(unwrap(inputs["state"])) if is_stateless(inputs["state"]) else {}
    return {
        "ready_tasks": [
            {
                "task_id": task.id,
                "title": task.plan.title,
                "agent_id": records.get(task.id, TaskRecord()).agent_id or task.agent,
                "issue_number": task.links.issue,
            }
            for task in state.tasks.values()
            if task.status is Status.READY
        ]
    }


def execute_actions(inputs: Json) -> Json:
    """Turn decisions into rows for the journal and the queue; the executor performs them."""
    actions = [
        action
        for name in ("dag_actions", "supervisor_actions")
        if isinstance(inputs.get(name), list)
        for action in inputs[name]
    ]
    if actions and all(isinstance(a, dict) and a.keys() & {"task_id", "agent_id"} for a in actions):
        return {
            "actions_taken": [action_summary(action) for action in actions],
            "errors": [],
            "rows": actions,
        }
    rows = (*_actions(inputs, "dag_actions"), *_actions(inputs, "supervisor_actions"))
    return {
        "actions_taken": [describe_action(row) for row in rows],
        "errors": [],
        "rows": in_process(rows),
    }


def _actions(inputs: Json, name: str) -> tuple[Action, ...]:
    return decode_as(inputs.get(name) or (), tuple[Action, ...], name)
