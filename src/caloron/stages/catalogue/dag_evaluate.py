"""The next state of a sprint and the actions that follow from what was observed.

A flat state, as the tick's file has it, goes through the protocol alone: events of a forge, or its
pictures, move its tasks, and somebody else does what is told.
"""

from __future__ import annotations

import msgspec

from caloron.domain.evaluate import evaluate
from caloron.domain.facts import Fact
from caloron.domain.flat import Event, Record, evaluate_flat, event_of
from caloron.domain.observations import Snapshot
from caloron.graph.held import opened
from caloron.graph.jsontext import Json
from caloron.graph.protocols import Call
from caloron.ledger.projections import iso
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.shapes import (
    held,
    held_state,
    is_flat,
    log_problems,
    moment,
    now_of,
    plain,
    read,
    records_of,
    state_of,
)

_STALL_M = 20.0


def execute(given: Json, call: Call | None = None) -> Json:
    now = now_of(given, call)
    if is_flat(given["state"]):
        return _flat(given, now)
    facts: tuple[Fact, ...] = read(given.get("events") or (), tuple[Fact, ...], "events")
    before = state_of(given["state"])
    decided = evaluate(before, facts, now)
    log_problems(before, decided)
    return {
        "state": held_state(decided.state),
        "actions": held(decided.actions),
        "moves": held(decided.moves),
    }


def _flat(given: Json, now: float) -> Json:
    state, minutes = opened(given["state"]), given.get("stall_threshold_m")
    before = {name: _counted(record) for name, record in records_of(state).items()}
    events = [event for told in opened(given.get("events")) or [] if (event := _event(told))]
    stall_s = (_STALL_M if minutes is None else minutes) * 60
    after, deeds = evaluate_flat(before, events, now, stall_s)
    tasks = {
        # What else a record holds is its owner's.
        name: state["tasks"][name] | _written(record, state["tasks"][name])
        for name, record in after.items()
    }
    moved = [
        {"task": name, "old": str(before[name].status), "new": str(record.status)}
        for name, record in after.items()
        if record.status is not before[name].status
    ]
    return {"state": {**state, "tasks": tasks}, "actions": deeds, "moves": moved}


def _counted(record: Record) -> Record:
    times = {"started_at": moment(record.started_at), "completed_at": moment(record.completed_at)}
    return msgspec.structs.replace(record, **times)


def _written(record: Record, before: Json) -> Json:
    """What a record says now; what it never said and still does not say is left out."""
    told = plain(record)
    for name in ("started_at", "completed_at"):
        told[name] = iso(moment(told[name]))
    unsaid = plain(Record())
    kept = {name for name in told if name in _ALWAYS or name in before}
    return {name: value for name, value in told.items() if name in kept or value != unsaid[name]}


def _event(told: Json) -> Event | None:
    if isinstance(told, dict) and told.get("type") in _PICTURES:
        seen: Snapshot = read(told, Snapshot, "events")
        return event_of(seen)
    event: Event = read(told, Event, "events")
    return event


_ALWAYS = ("status", "issue_number", "pr_number", "started_at", "completed_at",
           "intervention_count")  # fmt: skip
_PICTURES = ("issue", "pull", "review", "comment", "branch")


if __name__ == "__main__":
    alone(execute)
