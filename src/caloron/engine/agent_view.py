"""Reads the exported folder of a sprint's agent, for prompts and for people; writes nothing."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from caloron.agentstate.dashboard import span
from caloron.agentstate.database import read_rows
from caloron.agentstate.records import OPEN
from caloron.answers import closing_words
from caloron.cycles import Cycles, Location
from caloron.cycles.report import PastCycle, past_cycles, report_of
from caloron.domain.reporting.waiting import clock_time

STATE = "state.sqlite"
#: The size of a description.
_LINES, _MAX_TEXT = 5, 2_000
#: Log entries that are read for the last cycles; a cycle has a few.
_LOG_ENTRIES = 200


def location_in(agent_dir: Path) -> Location:
    """The files of the cycles of a sprint's agent."""
    return Location(agent_dir.name, agent_dir / "cycle.json", agent_dir / "cycle.log")


def cycles_in(agent_dir: Path) -> Cycles:
    return Cycles(location_in(agent_dir))


def describe(folder: Path, agent: str, *, waking: bool = False, sprint: str = "") -> str:
    """Describe an agent: its last cycles, its queue, its events, its last retro.

    With a sprint, only its work there: nothing if it has not worked there yet.
    """
    agent_dir = folder / agent
    state = cycles_in(agent_dir).load().state
    scope = f"{sprint}/" if sprint else ""
    cycles = [past for past in last_cycles(agent_dir, _LINES) if past.work.startswith(scope)]
    number = state.cycle_number
    if not number or (sprint and not cycles):
        return ""
    begin = f"You are {agent}, and this is your cycle {number + 1}."
    lines = [begin if waking else f"Cycles of {agent}: {number}"]
    lines += report_of(state).text().splitlines()[1:]
    queue = [e for e in queue_of(agent_dir) if e["status"] in OPEN and e["id"].startswith(scope)]
    if queue:
        lines.append("Queue:")
        lines += [_one_line(f"- {e['id']} ({e['status']})") for e in queue[:_LINES]]
    lines.append("EventLog, newest first:")
    events = events_of(agent_dir, _LINES)
    lines += [f"- {_event(e)}" for e in events if str(e["work_item_id"] or "").startswith(scope)]
    if earlier := [past for past in cycles if past.status != "open"]:
        lines.append("Cycles, newest first:")
        lines += [f"- {_past(past)}" for past in earlier]
    if not sprint and (retros := retros_of(agent_dir)):
        lines.append(f"Last retro: {retros[-1].name}")
    text = "\n".join(lines)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def last_cycles(agent_dir: Path, count: int) -> list[PastCycle]:
    """The last cycles of an agent, newest first."""
    return past_cycles(cycles_in(agent_dir).log.newest(_LOG_ENTRIES), count)


def queue_of(agent_dir: Path) -> list[dict[str, Any]]:
    """The work items of an agent, newest first."""
    values = {"kind": None, "owner": None, "status": None, "limit": -1}
    return list(read_rows(agent_dir / STATE, "list", values))


def events_of(agent_dir: Path, limit: int) -> list[dict[str, Any]]:
    """The last events of an agent, newest first."""
    return list(read_rows(agent_dir / STATE, "tail", {"limit": limit}))


def retros_of(agent_dir: Path) -> list[Path]:
    """The weekly retros, in order."""
    return sorted((agent_dir / "retros").glob("*.md"))


def _event(event: dict[str, Any]) -> str:
    item = str(event["work_item_id"] or "").partition("/")[2]
    parts = (event["type"], item, _words(event["payload"]))
    return _one_line(" ".join(str(part) for part in parts if part))


def _words(payload: Any) -> Any:
    """The text of an event; other programs may have written any payload."""
    try:
        data = json.loads(payload)
    except (ValueError, TypeError):
        return payload
    if not isinstance(data, dict):
        return data
    keys = ("last_line", "notes", "reason", "status")
    return closing_words(str(next((data[key] for key in keys if data.get(key)), "")))


def _past(past: PastCycle) -> str:
    outcome = f"ended as {past.result}" if past.status == "ended" else past.status
    words = past.last_action or past.reason
    began = past.started_at[:16]
    try:
        start, end = map(datetime.fromisoformat, (past.started_at, past.ended_at))
        began = clock_time(start.timestamp())
        outcome += f" after {span(int((end - start).total_seconds() * 1000))}"
    except ValueError:
        # The log was edited, or the cycle has not ended.
        pass
    line = f"{past.number}, {began}, {past.work or 'no task'}: {outcome}"
    return f"{line}; {words}"[:200] if words else line


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
