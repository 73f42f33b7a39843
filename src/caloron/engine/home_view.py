"""What there is to see in the home of an agent of a sprint; looking changes nothing in it."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from caloron.agentstate.cycles import Cycles, Places
from caloron.agentstate.cycles.history import Past, cycles_of
from caloron.agentstate.cycles.report import report_of
from caloron.agentstate.dashboard import span
from caloron.agentstate.looking import look
from caloron.agentstate.records import OPEN
from caloron.answers import closing_words
from caloron.domain.pauses import clock_time
from caloron.errors import CaloronError
from caloron.store import log

#: What opens a prompt.
_LINES, _LONGEST = 5, 2_000
#: Of the log; a wake writes a few lines.
_LOG_LINES = 200


def places_in(where: Path) -> Places:
    """Where the cycles of an agent of a sprint are kept: in its home."""
    return Places(where.name, where / "cycle.json", where / "cycle.log")


def cycles_in(where: Path) -> Cycles:
    """The cycles of an agent of a sprint: which of them crashed, only the ledger says."""
    return Cycles(places_in(where), dead_after=None)


def numbers_in(folder: Path) -> dict[str, int]:
    """The number of the last cycle of each home, for whoever begins these homes anew."""
    found: dict[str, int] = {}
    for where in sorted(folder.glob("*/")):
        try:
            number = cycles_in(where).look().state.cycle_number
        except CaloronError as error:
            log.warning("cannot read the number of the last cycle", error=error, home=where)
            # Nobody can read it: then nobody knows the number.
            continue
        if number:
            found[where.name] = number
    return found


def about(folder: Path, agent: str, *, waking: bool = False, sprint: str = "") -> str:
    """What there is to say of an agent: its last cycle, its queue, its diary, its retros.

    With a sprint, only what it did there: nothing if it has not worked there yet.
    """
    where = folder / agent
    state = cycles_in(where).look().state
    scope = f"{sprint}/" if sprint else ""
    cycles = [past for past in past_of(where, _LINES) if str(past.work).startswith(scope)]
    if not state.cycle_number or (sprint and not cycles):
        return ""
    lines = report_of(state).text().splitlines()[1:]
    number = state.cycle_number
    begin = f"You are {agent}, and this is your cycle {number + 1}." if waking else ""
    lines = [begin, *lines] if begin else [f"Cycles of {agent}: {number}", *lines]
    queue = [e for e in queue_of(where) if e["status"] in OPEN and e["id"].startswith(scope)]
    if queue:
        lines.append("Queue:")
        lines += [_one_line(f"- {e['id']} ({e['status']})") for e in queue[:_LINES]]
    lines.append("Diary, newest first:")
    diary = diary_of(where, _LINES)
    lines += [f"- {_shown(e)}" for e in diary if str(e["work_item_id"] or "").startswith(scope)]
    earlier = [past for past in cycles if past.status != "open"]
    if earlier:
        lines.append("Cycles, newest first:")
        lines += [f"- {_told(past)}" for past in earlier]
    if not sprint and (retros := retros_of(where)):
        lines.append(f"Last retro: {retros[-1].name}")
    text = "\n".join(lines)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _shown(event: dict[str, Any]) -> str:
    item = str(event["work_item_id"] or "").partition("/")[2]
    parts = (event["type"], item, _said(event["payload"]))
    return _one_line(" ".join(str(part) for part in parts if part))


def _said(payload: Any) -> Any:
    """What a line of the diary tells; whoever writes into a home may put anything there."""
    try:
        told = json.loads(payload)
    except (ValueError, TypeError):
        return payload
    if not isinstance(told, dict):
        return told
    said = next(
        (told[key] for key in ("last_line", "notes", "reason", "status") if told.get(key)), ""
    )
    return closing_words(str(said))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]


def past_of(where: Path, count: int) -> list[Past]:
    """The last cycles of an agent, newest first."""
    return cycles_of(cycles_in(where).log.newest(_LOG_LINES), count)


def _told(past: Past) -> str:
    how = f"ended as {past.result}" if past.status == "ended" else past.status
    said = past.last_action or past.reason
    head = f"{past.number}, {_began(past)}, {past.work or 'no task'}: {how}{_took(past)}"
    return f"{head}; {said}"[:200] if said else head


def _began(past: Past) -> str:
    try:
        return clock_time(datetime.fromisoformat(past.started_at).timestamp())
    except (ValueError, TypeError):
        # A line of the log that was edited.
        return str(past.started_at)[:16]


def _took(past: Past) -> str:
    try:
        began, ended = map(datetime.fromisoformat, (past.started_at, past.ended_at))
        return f" after {span(int((ended - began).total_seconds() * 1000))}"
    except (ValueError, TypeError):
        # A line of the log that somebody changed.
        return ""


def queue_of(where: Path, status: str | None = None) -> list[dict[str, Any]]:
    """The errands of an agent, newest first."""
    wanted = {"kind": None, "owner": None, "status": status, "limit": -1}
    return list(look(where / "state.sqlite", "list", wanted))


def diary_of(where: Path, limit: int) -> list[dict[str, Any]]:
    """The last lines of an agent's diary, newest first."""
    return list(look(where / "state.sqlite", "tail", {"limit": limit}))


def retros_of(where: Path) -> list[Path]:
    """The weeks that were looked back at, in order."""
    return sorted((where / "retros").glob("*.md"))
