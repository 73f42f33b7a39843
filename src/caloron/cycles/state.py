"""The state of an agent's cycles: a fold over its log, and the form of its file. Pure."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

VERSION = 1
RESULTS = ("success", "failure", "partial")
#: `none`: the agent never woke; `open`: it is at work; else how its last cycle ended.
STATUSES = ("none", "open", "ended", "crashed")
#: No agent wakes so often: a higher number is part of the damage.
_HIGHEST = 10**12
_NUMBER = re.compile(rb'"cycle_number"\s*:\s*"?(\d{1,12})"?\s*[,}\n]')

Entry = dict[str, Any]


class Unreadable(Exception):
    """A state file that cannot be used; the message says why."""

    #: The cycle number in the file, which no later cycle may get again; 0: none.
    number = 0


class NewerVersion(Unreadable):
    """A state file of a newer Caloron."""


class CycleState(NamedTuple):
    """Everything known of an agent's cycles; times are ISO 8601 in UTC."""

    agent: str
    cycle_number: int = 0
    last_action: str = ""
    #: The result of that action; `result` is that of the whole cycle.
    last_action_result: str = ""
    work_in_progress: str = ""
    timestamp: str = ""
    next_target: str = ""
    status: str = "none"
    started_at: str = ""
    heartbeat: str = ""
    ended_at: str = ""
    artefacts: tuple[str, ...] = ()
    #: Why the cycle left no artefact, or how it crashed.
    reason: str = ""
    #: The result of the cycle, once it has ended.
    result: str = ""
    steps: int = 0
    #: The number of cycles that the work in progress has taken, this one included.
    work_cycles: int = 0
    #: The process that owns the open cycle.
    holder: dict[str, Any] | None = None
    #: The cycle before this one: its number, how it ended, its last step.
    previous: dict[str, Any] | None = None
    #: The number of the last log entry that is part of this state.
    seq: int = 0


def apply(state: CycleState, entry: Entry) -> CycleState:
    """Return the state after one log entry; an entry that is already part of it changes nothing."""
    if entry["seq"] <= state.seq:
        return state
    step = _STEPS.get(entry["event"])
    return (step(state, entry) if step else state)._replace(seq=entry["seq"])


def _begin(state: CycleState, entry: Entry) -> CycleState:
    at = entry["at"]
    begun = CycleState(
        agent=state.agent,
        cycle_number=entry["cycle"],
        last_action=state.last_action,
        last_action_result=state.last_action_result,
        work_in_progress=state.work_in_progress,
        timestamp=at,
        next_target=state.next_target,
        status="open",
        started_at=at,
        heartbeat=at,
        work_cycles=state.work_cycles + 1 if state.work_in_progress else 0,
        holder=entry.get("holder"),
        previous=summary(state) if state.cycle_number else None,
    )
    return _with_work(begun, entry)


def _act(state: CycleState, entry: Entry) -> CycleState:
    artefact = entry.get("artefact")
    acted = state._replace(
        last_action=entry.get("action", state.last_action),
        last_action_result=entry.get("result", "success"),
        timestamp=entry["at"],
        heartbeat=entry["at"],
        steps=state.steps + 1,
        artefacts=(*state.artefacts, artefact) if artefact else state.artefacts,
        next_target=entry.get("next", state.next_target),
    )
    return _with_work(acted, entry)


def _end(state: CycleState, entry: Entry) -> CycleState:
    ended = state._replace(
        result=entry["result"],
        timestamp=entry["at"],
        heartbeat=entry["at"],
        ended_at=entry["at"],
        status="ended",
        artefacts=(*state.artefacts, *entry.get("artefacts", ())),
        reason=entry.get("reason", ""),
        next_target=entry.get("next", state.next_target),
        holder=None,
    )
    return _with_work(ended, entry)


def _crashed(state: CycleState, entry: Entry) -> CycleState:
    return state._replace(
        status="crashed", ended_at=entry["at"], reason=entry.get("reason", ""), holder=None
    )


def _snapshot(state: CycleState, entry: Entry) -> CycleState:
    """The first entry of a log that continues an earlier file."""
    try:
        return read(json.dumps(entry["state"]).encode(), state.agent)
    except (KeyError, Unreadable):
        return state


_STEPS = {
    "begin": _begin, "act": _act, "end": _end, "crashed": _crashed, "snapshot": _snapshot,
    # Version 0.4 wrote this entry for an agent that had changed its location.
    "carried": _snapshot,
}  # fmt: skip


def _with_work(state: CycleState, entry: Entry) -> CycleState:
    """The state with the work in progress that the entry names; a new task starts counting."""
    work = entry.get("work")
    if work is None or work == state.work_in_progress:
        return state
    return state._replace(work_in_progress=work, work_cycles=1 if work else 0)


def summary(state: CycleState) -> dict[str, Any]:
    """One cycle in short, for the cycle after it."""
    return {
        "cycle_number": state.cycle_number,
        "status": state.status,
        "result": state.result,
        "last_action": state.last_action if state.steps else "",
        "last_action_result": state.last_action_result if state.steps else "",
        "steps": state.steps,
        "artefacts": list(state.artefacts),
        "reason": state.reason,
        "started_at": state.started_at,
        "ended_at": state.ended_at,
    }


def state_data(state: CycleState) -> dict[str, Any]:
    """The state as JSON data."""
    return state._asdict() | {"artefacts": list(state.artefacts)}


def render(state: CycleState) -> bytes:
    """The content of a state file; the fields of the protocol come first."""
    data = {"version": VERSION} | state_data(state)
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def read(content: bytes, agent: str) -> CycleState:
    """Parse a state file; one with only the fields of the protocol is accepted too."""
    try:
        return _state_of(_decode(content), agent)
    except Unreadable as error:
        error.number = max(map(int, _NUMBER.findall(content)), default=0)
        raise


def _decode(content: bytes) -> dict[str, Any]:
    """The JSON object in a file, if this version can read it."""
    if not content.strip():
        raise Unreadable("it is empty")
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise Unreadable("it is no JSON object")
    version = data.pop("version", VERSION)
    if not _is_number(version):
        raise Unreadable(f"its version is {version!r}")
    if version > VERSION:
        raise NewerVersion(f"a newer Caloron wrote it (version {version})")
    return data


def _state_of(data: dict[str, Any], agent: str) -> CycleState:
    state = CycleState(agent)
    fields = {name: data[name] for name in CycleState._fields if data.get(name) is not None}
    for name, value in fields.items():
        if not _has_type(value, getattr(state, name), name):
            raise Unreadable(f"its {name} is {value!r}"[:200])
    if "cycle_number" not in fields:
        raise Unreadable("it has no cycle_number")
    fields["artefacts"] = tuple(fields.get("artefacts", ()))
    # A file with only the fields of the protocol describes a cycle that ended with one action.
    fields.setdefault("status", "ended" if fields["cycle_number"] else "none")
    if fields["status"] == "ended":
        fields.setdefault("result", fields.get("last_action_result", ""))
    fields.setdefault("steps", int(bool(fields.get("last_action"))))
    if fields.get("work_in_progress"):
        fields.setdefault("work_cycles", _work_cycles(data, fields["cycle_number"]))
    return state._replace(**{**fields, "agent": agent})


def _work_cycles(data: dict[str, Any], number: int) -> int:
    """Version 0.4 stored the cycle in which the work began instead of a count."""
    since = data.get("work_since")
    return max(1, number - since + 1) if _is_number(since) and since else 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _has_type(value: Any, default: Any, name: str) -> bool:
    if name == "status":
        return value in STATUSES
    if name in ("holder", "previous"):
        return isinstance(value, dict)
    if name == "artefacts":
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if name == "cycle_number":
        return _is_number(value) and value <= _HIGHEST
    return _is_number(value) if isinstance(default, int) else isinstance(value, str)
