"""Brings the home of an agent up to its ledger: errands, diary and cycles, by the times of it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from caloron.agentstate.copies import Copied, put
from caloron.agentstate.cycles import Cycles
from caloron.agentstate.file import QUEUE
from caloron.agentstate.home import AgentHome
from caloron.answers import closing_words
from caloron.domain.retro import STOPPED
from caloron.engine.home_view import places_in

#: How far a home has followed, and the number of its last cycle then. In its own file: one that is
#: deleted begins again.
_FOLLOWED = """
CREATE TABLE IF NOT EXISTS caloron_followed (id INTEGER PRIMARY KEY, through INTEGER, cycle INTEGER)
"""
_FOLLOW = "INSERT OR REPLACE INTO caloron_followed VALUES (1, ?, ?)"
_COPIED = (
    "attempt_started", "attempt_ended", "attempt_lost", "agent_reported", "work_salvaged",
    "work_dropped",
)  # fmt: skip
#: The line of the ledger that says from which numbers on cycles go on.
RESTORED = "state_restored"


def status_after(type: str, told: dict[str, Any]) -> str:
    """How an errand stands after a line of the ledger's diary; empty: as before."""
    match type:
        case "attempt_started":
            return "in_flight"
        case "work_item_resolved":
            return str(told.get("status"))
        case "work_item_reopened":
            return "pending"
    return ""


def copied(item: str, agent: str) -> Copied:
    """An item of the ledger's queue as an errand of its agent."""
    sprint, task, work = item.split("/")
    told = {"sprint": sprint, "task": task, "work": work}
    return Copied(item, work.partition("-")[2], told, agent)


class Follower:
    """Takes in one line of the ledger after the other, each once: into the file, and the cycles."""

    def __init__(
        self, home: AgentHome, agent: str, busy_at: Callable[[int], set[str]], given: int = 0
    ) -> None:
        """`busy_at`: the items at work after a line; `given`: the last number given elsewhere."""
        self._home, self._agent = home, agent
        self._now = datetime.now(UTC)
        self._cycles = Cycles(places_in(home.where), now=lambda: self._now, dead_after=None)
        home.db.rows(_FOLLOWED)
        row = home.db.row("SELECT through, cycle FROM caloron_followed")
        self._through, number = (int(row["through"]), int(row["cycle"] or 0)) if row else (0, 0)
        state = self._cycles.look().state
        self._followed, self._number = state.follows, max(given, number, state.cycle_number)
        if not state.cycle_number:
            # A lock that outlived its cycles would have them told again under other numbers.
            places_in(home.where).lock.unlink(missing_ok=True)
        #: The line of the ledger after which the file or the cycles lack something.
        self.since = min(self._through, self._followed) if number else self._through
        self._busy = busy_at(self.since)
        self._connection: sqlite3.Connection

    def take_in(self, rows: Sequence[sqlite3.Row]) -> None:
        """Take in some lines together: the cycles are on disk before the file says how far."""
        with self._home.db.transaction("follow") as self._connection:
            with self._cycles.batch(rows[-1]["id"]):
                for row in rows:
                    self._take_in(row)
            if rows[-1]["id"] > self._through:
                self._through = rows[-1]["id"]
                number = self._cycles.look().state.cycle_number
                self._connection.execute(_FOLLOW, (self._through, number))

    def _take_in(self, row: sqlite3.Row) -> None:
        told = json.loads(row["payload"])
        self._now = datetime.fromtimestamp(row["ts"] / 1000, UTC)
        item, status = str(row["item"] or ""), status_after(row["type"], told)
        if status == "in_flight":
            self._busy.add(item)
        elif status:
            self._busy.discard(item)
        if row["id"] > self._followed:
            self._live(row["id"], row["type"], item, told)
        if row["id"] > self._through:
            self._write_down(row, item, status, str(told.get("notes") or told.get("reason") or ""))

    def finish(self) -> None:
        """Whatever was told again, no number is given twice."""
        self._cycles.raise_to(self._number, "these numbers were given before")

    def _write_down(self, row: sqlite3.Row, item: str, status: str, said: str) -> None:
        """The errand, and the line of the diary."""
        connection = self._connection
        if item:
            errand = copied(item, self._agent)
            put(connection, errand, status or _standing(connection, item), row["ts"], said)
        if row["type"] in _COPIED:
            QUEUE.append_event(
                connection, row["type"], row["payload"], item=item, key=f"ledger/{row['id']}",
                ts=row["ts"],
            )  # fmt: skip

    def _live(self, line: int, type: str, item: str, told: dict[str, Any]) -> None:
        """What this line of the ledger means for the agent's cycles; done twice it is done once."""
        match type:
            case "attempt_started":
                self._began(line, item, told)
            case "attempt_ended":
                result = "failure" if told.get("exit_code") else "success"
                self._step(_ended(told), result, line)
            case "attempt_lost":
                said = closing_words(str(told.get("last_line") or ""))
                self._step(f"the last it wrote: {said or 'nothing'}", "partial", line)
            case "work_item_resolved":
                self._resolved(line, item, told)
            case "work_item_reopened" if self._alone():
                self._reopened(line, item, str(told.get("reason") or "it was given back"))
            case "state_restored":
                number = int(told.get("cycles", {}).get(self._agent, 0))
                why = "an older state was restored; these numbers were given before"
                self._cycles.raise_to(number, why, follows=line)

    def _began(self, line: int, item: str, told: dict[str, Any]) -> None:
        sprint, task, work = item.split("/")
        if self._cycles.look().state.status != "open":
            self._cycles.begin(work=f"{sprint}/{task}")
        self._step(f"began {work} of {task}, attempt {told.get('attempt')}", "partial", line)

    def _step(self, action: str, result: str, line: int | None = None) -> None:
        state = self._cycles.look().state
        if state.status == "open" and (state.last_action != action or not state.steps):
            self._cycles.act(action, result=result, follows=line)

    def _reopened(self, line: int, item: str, reason: str) -> None:
        """A cycle that a person stopped has ended; any other that was cut short has crashed."""
        if reason == STOPPED:
            self._cycles.end("partial", reason=reason, next_target=_again(item), follows=line)
        else:
            self._cycles.recover(why=reason, follows=line)

    def _resolved(self, line: int, item: str, told: dict[str, Any]) -> None:
        status, notes = str(told.get("status")), closing_words(str(told.get("notes") or ""))
        alone = self._alone()
        step = f"{item.rpartition('/')[2]} ended as {status}"
        # Where the cycle ends too, that step names the line: a kill in between repeats both.
        self._step(step, _result(status), None if alone else line)
        if alone:
            left = f"{item}: {notes}" if notes else item
            # What is done is not in progress any more; what failed or waits for a person is.
            unfinished = status == "failed" or bool(told.get("held"))
            self._cycles.end(
                _result(status),
                artefacts=(left,),
                work=None if unfinished else "",
                next_target=_again(item) if unfinished else "",
                follows=line,
            )

    def _alone(self) -> bool:
        """Whether a cycle is open, and no other work of this agent is in it."""
        return self._cycles.look().state.status == "open" and not self._busy


def _again(item: str) -> str:
    """What is to be done after work that did not come to its end."""
    _, task, work = item.split("/")
    return f"{work.partition('-')[2]} of {task}, again"


def _standing(connection: sqlite3.Connection, item: str) -> str:
    """How an errand stands here already; a new one waits."""
    row = connection.execute("SELECT status FROM work_items WHERE id = ?", (item,)).fetchone()
    return str(row["status"]) if row else "pending"


def _ended(told: dict[str, Any]) -> str:
    last = closing_words(str(told.get("last_line") or ""))
    how = f"its process ended with {told.get('exit_code', 0)}"
    return f"{how}: {last}" if last else how


def _result(status: str) -> str:
    return {"done": "success", "failed": "failure"}.get(status, "partial")
