"""The cycles of a sprint's agent, derived from the ledger's events about its work. Pure.

A cycle lasts from the start of an agent's process to the end of its work. An agent that works on
two items at once, as a reviewer does, has one cycle for both.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from caloron.answers import closing_words
from caloron.cycles.state import CycleState, Entry, apply
from caloron.cycles.storage import timestamp
from caloron.domain.reporting.kpis import STOPPED

_MAX_TEXT = 2000


class WorkEvent(NamedTuple):
    """One event of the ledger about an item of the queue."""

    id: int
    ts: int
    type: str
    item: str
    payload: dict[str, Any]

    @property
    def status(self) -> str:
        """The status of the item after this event; empty: as before."""
        match self.type:
            case "work_item_created" | "work_item_reopened":
                return "pending"
            case "work_item_claimed":
                return "in_flight"
            case "work_item_resolved":
                return str(self.payload.get("status"))
        return ""


class CycleFold:
    """Turns one event after the other into entries of the agent's cycle log."""

    def __init__(self, state: CycleState, busy: Iterable[str] = ()) -> None:
        """`busy`: the items whose processes run."""
        self.state, self.busy = state, set(busy)
        self.entries: list[Entry] = []
        self._at = ""

    def add(self, event: WorkEvent) -> None:
        self._at = timestamp(datetime.fromtimestamp(event.ts / 1000, UTC))
        payload = event.payload
        match event.type:
            case "attempt_started":
                self._started(event)
            case "attempt_ended":
                words = closing_words(str(payload.get("last_line") or ""))
                action = f"its process ended with {payload.get('exit_code', 0)}"
                result = "failure" if payload.get("exit_code") else "success"
                self._act(f"{action}: {words}" if words else action, result)
            case "attempt_lost":
                words = closing_words(str(payload.get("last_line") or ""))
                self._act(f"the last it wrote: {words or 'nothing'}", "partial")
            case "work_item_resolved":
                self._resolved(event)
            case "work_item_reopened":
                self._reopened(event)

    def _started(self, event: WorkEvent) -> None:
        sprint, task, work = event.item.split("/")
        self.busy.add(event.item)
        if self.state.status != "open":
            number = self.state.cycle_number + 1
            self._record("begin", {"work": f"{sprint}/{task}"}, number)
        self._act(f"began {work} of {task}, attempt {event.payload.get('attempt')}", "partial")

    def _resolved(self, event: WorkEvent) -> None:
        status = event.status
        result = {"done": "success", "failed": "failure"}.get(status, "partial")
        self.busy.discard(event.item)
        self._act(f"{event.item.rpartition('/')[2]} ended as {status}", result)
        if self.state.status == "open" and not self.busy:
            words = closing_words(str(event.payload.get("notes") or ""))
            artefact = f"{event.item}: {words}" if words else event.item
            unfinished = status == "failed" or event.payload.get("held")
            target = {"next": _again(event.item)} if unfinished else {"next": "", "work": ""}
            self._record("end", {"result": result, "artefacts": [artefact], **target})

    def _reopened(self, event: WorkEvent) -> None:
        """A cycle that a person stopped has ended; any other interrupted one has crashed."""
        self.busy.discard(event.item)
        if self.state.status != "open" or self.busy:
            return
        reason = str(event.payload.get("reason") or "it was given back")[:_MAX_TEXT]
        if reason == STOPPED:
            again = _again(event.item)
            self._record("end", {"result": "partial", "reason": reason, "next": again})
        else:
            last_step = self.state.last_action if self.state.steps else ""
            self._record("crashed", {"reason": reason, "last_step": last_step})

    def _act(self, action: str, result: str) -> None:
        state = self.state
        if state.status == "open" and (state.last_action != action or not state.steps):
            self._record("act", {"action": action[:_MAX_TEXT], "result": result})

    def _record(self, event: str, fields: dict[str, Any], cycle: int | None = None) -> None:
        number = self.state.cycle_number if cycle is None else cycle
        entry: Entry = {"at": self._at, "cycle": number, "event": event}
        entry |= fields | {"seq": self.state.seq + 1}
        self.state = apply(self.state, entry)
        self.entries.append(entry)


def _again(item: str) -> str:
    """The next target after work that did not come to its end."""
    _, task, work = item.split("/")
    return f"{work.partition('-')[2]} of {task}, again"
