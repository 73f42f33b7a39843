"""What reports and retros need from the ledger: sprints, their tasks, and the runs of the diary."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from caloron.answers import closing_words
from caloron.domain.history import remembered, with_adopted
from caloron.domain.learnings import Kept
from caloron.domain.retro import NOT_NEEDED, Run
from caloron.domain.sprint import Sprint, State, Task
from caloron.errors import NotFound
from caloron.ledger.locate import require_id
from caloron.store.statements import load_statements

SQL = load_statements(Path(__file__).parent / "sql" / "figures.sql")
_sprint_of = msgspec.json.Decoder(Sprint).decode
_task_of = msgspec.json.Decoder(Task).decode
_kept_of = msgspec.json.Decoder(Kept).decode

#: The provider said no: not the agent's failure.
_REFUSED = ("auth", "quota", "rate_limit")
_LARGEST_NUMBER = 1 << 62
#: What is older teaches nothing any more, and would make each plan wait.
REMEMBERED = 500


class Figures(msgspec.Struct, frozen=True):
    """One sprint: its state without what was seen on the forge, and its runs."""

    state: State
    runs: tuple[Run, ...]


def find_sprint(connection: sqlite3.Connection, named: str = "") -> str:
    """The id of a sprint that a user names by id or by number; the last one when none is named."""
    if not named:
        row = connection.execute(SQL["last"]).fetchone()
        if row is None:
            raise NotFound("this project has no sprint yet", hint='caloron sprint "<goal>"')
        return str(row["id"])
    number = named.removeprefix("#")
    if number.isascii() and number.isdigit():
        known = int(number) if len(number) < 19 else _LARGEST_NUMBER
        row = connection.execute(SQL["by_number"], {"number": known}).fetchone()
    else:
        row = connection.execute(SQL["by_id"], {"id": require_id(named, "sprint")}).fetchone()
    if row is None:
        raise NotFound(f"there is no sprint {named}", hint=_hint(connection, number))
    return str(row["id"])


def number_of(connection: sqlite3.Connection, sprint: str) -> int:
    """The number of a sprint that the ledger has."""
    row = connection.execute(SQL["sprint"], {"sprint": sprint}).fetchone()
    return int(row["number"])


def sprint_numbers(connection: sqlite3.Connection) -> dict[str, int]:
    """The numbers of all sprints by their ids."""
    return {row["id"]: row["number"] for row in connection.execute(SQL["numbers"])}


def _hint(connection: sqlite3.Connection, named: str) -> str:
    if connection.execute(SQL["has_entries"]).fetchone():
        who = {"number": named if len(named) < 19 else "", "id": named}
        if connection.execute(SQL["is_adopted"], who).fetchone():
            return f"an older Caloron ran it, and left only numbers: caloron show {named}"
    return "caloron history lists them"


def figures_of(connection: sqlite3.Connection, sprint: str) -> Figures:
    row = connection.execute(SQL["sprint"], {"sprint": sprint}).fetchone()
    if row is None:
        raise NotFound(f"there is no sprint {sprint}", hint="caloron history lists them")
    return _figures(connection, row)


def last_figures(connection: sqlite3.Connection, last: int) -> list[Figures]:
    """The last so many sprints in order."""
    newest = connection.execute(SQL["newest"]).fetchone()[0]
    rows = connection.execute(SQL["sprints"], {"after": newest - last}).fetchall()
    return [_figures(connection, row) for row in rows]


def _figures(connection: sqlite3.Connection, row: sqlite3.Row) -> Figures:
    return Figures(_state(connection, row), runs_below(connection, row["id"]))


def _state(connection: sqlite3.Connection, row: sqlite3.Row) -> State:
    tasks = connection.execute(SQL["tasks"], {"sprint": row["id"]})
    return State(
        sprint=_sprint_of(row["data"]), tasks={t["id"]: _task_of(t["data"]) for t in tasks}
    )


def all_runs(connection: sqlite3.Connection) -> tuple[Run, ...]:
    """The runs of all sprints."""
    return _runs_in(connection, "", "\U0010ffff")


def runs_below(connection: sqlite3.Connection, place: str) -> tuple[Run, ...]:
    """The runs of a sprint, `<sprint>`, or of one task of it, `<sprint>/<task>`."""
    # "0" is the character that follows "/".
    return _runs_in(connection, f"{place}/", f"{place}0")


def _runs_in(connection: sqlite3.Connection, low: str, high: str) -> tuple[Run, ...]:
    ends = {"low": low, "high": high}
    seen = {row["item"]: row["activity_at"] / 1000 for row in connection.execute(SQL["seen"], ends)}
    return tuple(_so_far(run, seen) for run in runs_in(connection.execute(SQL["runs"], ends)))


def _so_far(run: Run, seen: dict[str, float]) -> Run:
    """A run that the diary knows no end of has lasted until it was last heard of."""
    if run.end != "running" or run.item not in seen:
        return run
    return msgspec.structs.replace(run, seconds=max(0.0, seen[run.item] - run.started_at))


def lost_engines(connection: sqlite3.Connection, sprint: str) -> int:
    """How often an engine of a sprint was killed or crashed and another one followed."""
    return int(connection.execute(SQL["lost_engines"], {"sprint": sprint}).fetchone()[0])


def waiting_states(connection: sqlite3.Connection) -> list[State]:
    """The sprints in which something may wait for a person, oldest first."""
    found = connection.execute(SQL["waiting"]).fetchall()
    return [_state(connection, row) for row in found]


def merging_sprints(connection: sqlite3.Connection, limit: int) -> list[str]:
    """The sprints that brought something to main, newest first."""
    return [row["id"] for row in connection.execute(SQL["merging"], {"limit": limit})]


def read_kept(connection: sqlite3.Connection, last: int = REMEMBERED) -> Kept:
    """What was learned and cannot be worked out from the sprints, with those of an older Caloron.

    Of these only the last so many; all of them for -1.
    """
    row = connection.execute(SQL["kept"]).fetchone()
    kept = _kept_of(row["value"]) if row else Kept()
    if not connection.execute(SQL["has_entries"]).fetchone():
        return kept
    rows = connection.execute(SQL["adopted"], {"limit": last}).fetchall()
    found = [remembered(row["key"], json.loads(row["text"])) for row in reversed(rows)]
    return with_adopted(kept, found)


def runs_in(diary: Iterable[sqlite3.Row]) -> list[Run]:
    """The runs that the diary of a sprint tells of, in the order in which they began."""
    items: dict[str, _Item] = {}
    order: list[tuple[_Item, int]] = []
    for row in diary:
        name = row["item"]
        if name.count("/") != 2:
            continue
        item = items.setdefault(name, _Item(name))
        before = len(item.runs)
        item.take(row["type"], row["ts"] / 1000, json.loads(row["payload"]))
        if len(item.runs) > before:
            order.append((item, before))
    return [item.runs[place] for item, place in order]


class _Item:
    """One piece of work, and the processes that were started for it."""

    def __init__(self, name: str) -> None:
        _, task, work = name.split("/")
        self.role: Any = work.rsplit("-", 1)[-1]
        of_the_sprint = ("po", "po"), ("baseline", "verify"), ("retro", "retro")
        self.task = "" if (task, self.role) in of_the_sprint else task
        self.name = name
        self.runs: list[Run] = []
        self._waits = False
        self._token = 0

    def take(self, type: str, at: float, told: dict[str, Any]) -> None:
        match type:
            case "work_item_claimed":
                self._waits, self._token = True, int(told.get("token", 0))
            case "attempt_started":
                self._cut_off(at, "")
                self._waits = False
                self._token = int(told.get("token", 0))
                self._begin(at, end="running")
            case "attempt_ended":
                self._ended(at, told)
            case "agent_reported":
                self._reported(told)
            case "work_item_reopened":
                self._cut_off(at, str(told.get("reason", "")))
            case "work_item_resolved" if told.get("status") == "cancelled":
                self._cut_off(at, NOT_NEEDED)
            case "work_item_resolved" if told.get("status") == "failed" and self._waits:
                # It failed before a process was there, such as in setup.
                self._begin(at, end="failed", exit_code=1, problem=str(told.get("notes") or ""))
                self._waits = False

    def _begin(self, at: float, **known: Any) -> None:
        own: dict[str, Any] = {"item": self.name, "role": self.role, "task": self.task}
        # The one number that every view has: claims are numbered, too, and some begin nothing.
        own |= {"attempt": len(self.runs) + 1, "token": self._token}
        self.runs.append(Run(**own, started_at=at, **known))

    def _change(self, place: int = -1, **known: Any) -> None:
        self.runs[place] = msgspec.structs.replace(self.runs[place], **known)

    def _cut_off(self, at: float, why: str) -> None:
        if self.runs and self.runs[-1].end == "running":
            seconds = max(0.0, at - self.runs[-1].started_at)
            self._change(end="interrupted", seconds=seconds, problem=why)

    def _ended(self, at: float, told: dict[str, Any]) -> None:
        if not self.runs or self.runs[-1].end != "running":
            return
        code = int(told.get("exit_code", 0))
        problem = str(told.get("over") or "")
        if told.get("timed_out"):
            problem = "it ran out of time"
        elif code and not problem:
            said = str(told.get("last_line") or "")
            said = said if self.role == "verify" else closing_words(said)
            problem = f"exit code {code}: {said or 'no output'}"
        self._change(
            end="failed" if problem else "done",
            seconds=max(0.0, at - self.runs[-1].started_at),
            exit_code=code,
            problem=problem,
        )

    def _reported(self, told: dict[str, Any]) -> None:
        token = int(told.get("token", 0))
        place = next((n for n, run in enumerate(self.runs) if token and run.token == token), -1)
        if not self.runs:
            return
        trouble, detail = told.get("trouble", ""), told.get("detail", "")
        if trouble:
            end = "interrupted" if trouble in _REFUSED else "failed"
            self._change(place, end=end, problem=f"{trouble}: {detail}" if detail else trouble)
        self._change(
            place,
            token=token or self.runs[place].token,
            framework=str(told.get("framework", "")),
            model=str(told.get("model", "")),
            usd=float(told.get("usd", 0.0)),
            tokens=int(told.get("tokens_in", 0)) + int(told.get("tokens_out", 0)),
            tools=dict(told.get("tools") or {}),
        )
