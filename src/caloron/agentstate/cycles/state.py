"""The state of an agent's cycles: a fold over its log, and what its file holds. Pure."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

VERSION = 1
RESULTS = ("success", "failure", "partial")
#: `none`: it never woke; `open`: it is at work; else how its last cycle ended.
STATUSES = ("none", "open", "ended", "crashed")
#: No agent wakes so often; a higher number is part of the damage.
_HIGHEST = 10**12
_NUMBER = re.compile(rb'"cycle_number"\s*:\s*"?(\d{1,12})"?\s*[,}\n]')


class Unreadable(Exception):
    """A state file that cannot be believed; says why."""

    #: The cycle number that stands in it, which no later one may be below; 0: none.
    number = 0


class FromTheFuture(Unreadable):
    """A state file of a newer Caloron."""


class CycleState(NamedTuple):
    """Everything that is known of an agent's cycles; times are ISO 8601 in UTC."""

    agent: str
    cycle_number: int = 0
    last_action: str = ""
    #: Of that action; what a whole cycle came to is its `result`.
    last_action_result: str = ""
    work_in_progress: str = ""
    timestamp: str = ""
    next_target: str = ""
    status: str = "none"
    started_at: str = ""
    heartbeat: str = ""
    ended_at: str = ""
    #: What the cycle leaves; and why it leaves nothing, or how it crashed.
    artefacts: tuple[str, ...] = ()
    reason: str = ""
    #: What the cycle came to, once it has ended.
    result: str = ""
    steps: int = 0
    #: The cycle in which the work in progress was begun; numbers that were skipped do not count.
    work_since: int = 0
    #: Who is at work, while a cycle is open.
    holder: dict[str, Any] | None = None
    #: The cycle before this one: its number, how it ended, its last step.
    previous: dict[str, Any] | None = None
    #: The cycle that all of this tells of, where higher numbers were given and nothing else is
    #: known of those; 0: that of `cycle_number`.
    last_known: int = 0
    #: How often the agent went on in another place: of two files the one with more is the newer.
    moves: int = 0
    #: What the last step follows, where another diary tells of these cycles.
    follows: int = 0
    #: The number of the last line of the log that is in here.
    seq: int = 0

    @property
    def known_cycle(self) -> int:
        """The cycle that all of this tells of."""
        return self.last_known or self.cycle_number

    @property
    def work_cycles(self) -> int:
        """In how many cycles the work in progress has been in progress."""
        return self.cycle_number - self.work_since + 1 if self.work_in_progress else 0


def apply(state: CycleState, event: dict[str, Any]) -> CycleState:
    """The state after one line of the log; a line that says nothing new changes nothing."""
    seq = event["seq"]
    if seq <= state.seq:
        return state
    step = _STEPS.get(event["event"])
    after = step(state, event) if step else state
    follows = event["follows"] if _is_number(event.get("follows")) else after.follows
    number = max(state.cycle_number, event["cycle"])
    return raised(after, number)._replace(seq=seq, follows=follows)


def raised(state: CycleState, number: int) -> CycleState:
    """The same, where a number at least as high was given and nothing else is known of it."""
    more = number - state.cycle_number
    if more <= 0:
        return state
    return state._replace(
        cycle_number=number,
        last_known=state.known_cycle,
        work_since=state.work_since + more if state.work_in_progress else 0,
    )


def _begin(state: CycleState, event: dict[str, Any]) -> CycleState:
    at = event["at"]
    state = raised(state, event["cycle"] - 1)
    begun = CycleState(
        agent=state.agent,
        cycle_number=event["cycle"],
        last_action=state.last_action,
        last_action_result=state.last_action_result,
        work_in_progress=state.work_in_progress,
        timestamp=at,
        next_target=state.next_target,
        status="open",
        started_at=at,
        heartbeat=at,
        work_since=state.work_since,
        holder=event.get("holder"),
        moves=state.moves,
        follows=state.follows,
        previous=summary(state) if state.cycle_number else None,
    )
    return _working(begun, event)


def _act(state: CycleState, event: dict[str, Any]) -> CycleState:
    artefact = event.get("artefact")
    acted = state._replace(
        last_action=event.get("action", state.last_action),
        last_action_result=event.get("result", "success"),
        timestamp=event["at"],
        heartbeat=event["at"],
        steps=state.steps + 1,
        artefacts=(*state.artefacts, artefact) if artefact else state.artefacts,
        next_target=event.get("next", state.next_target),
    )
    return _working(acted, event)


def _end(state: CycleState, event: dict[str, Any]) -> CycleState:
    ended = state._replace(
        result=event["result"],
        timestamp=event["at"],
        heartbeat=event["at"],
        ended_at=event["at"],
        status="ended",
        artefacts=(*state.artefacts, *event.get("artefacts", ())),
        reason=event.get("reason", ""),
        next_target=event.get("next", state.next_target),
        holder=None,
    )
    return _working(ended, event)


def _crashed(state: CycleState, event: dict[str, Any]) -> CycleState:
    return state._replace(
        status="crashed", ended_at=event["at"], reason=event.get("reason", ""), holder=None
    )


def _snapshot(state: CycleState, event: dict[str, Any]) -> CycleState:
    """The first line of a log that goes on from an earlier file."""
    try:
        return read(json.dumps(event["state"]).encode(), state.agent)
    except (KeyError, Unreadable):
        return state


_STEPS = {
    "begin": _begin, "act": _act, "end": _end, "crashed": _crashed, "snapshot": _snapshot,
    "carried": _snapshot,
}  # fmt: skip


def _working(state: CycleState, event: dict[str, Any]) -> CycleState:
    """What is in progress, if the line says so; another task is begun in this cycle."""
    work = event.get("work")
    if work is None or work == state.work_in_progress:
        return state
    return state._replace(work_in_progress=work, work_since=state.cycle_number if work else 0)


def summary(state: CycleState) -> dict[str, Any]:
    """One cycle in short, for the one that follows."""
    return {
        "cycle_number": state.known_cycle,
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


def render(state: CycleState) -> bytes:
    """The state as its file holds it, the fields that others read first."""
    told = {"version": VERSION} | state._asdict() | {"artefacts": list(state.artefacts)}
    return (json.dumps(told, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def read(content: bytes, agent: str) -> CycleState:
    """What a file holds; a file with no more than the fields of the protocol is taken too."""
    try:
        return _state_of(_told(content), agent)
    except Unreadable as error:
        error.number = max(map(int, _NUMBER.findall(content)), default=0)
        raise


def _told(content: bytes) -> dict[str, Any]:
    """The object that a file holds, if it is one that this version may believe."""
    if not content.strip():
        raise Unreadable("it is empty")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Unreadable("it is no JSON object")
    version = found.pop("version", VERSION)
    if not _is_number(version):
        raise Unreadable(f"its version is {version!r}")
    if version > VERSION:
        raise FromTheFuture(f"a newer Caloron wrote it (version {version})")
    return found


def _state_of(found: dict[str, Any], agent: str) -> CycleState:
    state = CycleState(agent)
    known = {name: found[name] for name in CycleState._fields if found.get(name) is not None}
    for name, value in known.items():
        if not _fits(value, getattr(state, name), name):
            raise Unreadable(f"its {name} is {value!r}"[:200])
    if "cycle_number" not in known:
        raise Unreadable("it has no cycle_number")
    known["artefacts"] = tuple(known.get("artefacts", ()))
    # Whoever wrote no more than the fields of the protocol knew only cycles that had ended, each
    # with one action.
    known.setdefault("status", "ended" if known["cycle_number"] else "none")
    if known["status"] == "ended":
        known.setdefault("result", known.get("last_action_result", ""))
    known.setdefault("steps", int(bool(known.get("last_action"))))
    if known.get("work_in_progress"):
        known.setdefault("work_since", known["cycle_number"])
    return state._replace(**{**known, "agent": agent})


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _fits(value: Any, default: Any, name: str) -> bool:
    if name == "status":
        return value in STATUSES
    if name in ("holder", "previous"):
        return isinstance(value, dict)
    if name == "artefacts":
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    if name == "cycle_number":
        return _is_number(value) and value <= _HIGHEST
    return _is_number(value) if isinstance(default, int) else isinstance(value, str)
