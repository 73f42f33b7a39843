"""Sprints, their tasks and their runs as reports and retros read them from the ledger."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from caloron.answers import closing_words
from caloron.domain.model.facts import PROVIDER_REFUSALS
from caloron.domain.model.roles import WorkId, is_work_id
from caloron.domain.model.sprint import Sprint, State
from caloron.domain.model.task import Task
from caloron.domain.reporting.history import history_record, remembered, with_adopted
from caloron.domain.reporting.kpis import NOT_NEEDED, Run
from caloron.domain.reporting.learnings import Kept, SprintRecord, record_of
from caloron.errors import NotFound
from caloron.ledger.locate import require_id
from caloron.store.database import load_statements

if TYPE_CHECKING:
    from caloron.ledger.ledger import Ledger

SQL = load_statements(Path(__file__).parent / "sql" / "run_history.sql")
_sprint_of = msgspec.json.Decoder(Sprint).decode
_task_of = msgspec.json.Decoder(Task).decode
_kept_of = msgspec.json.Decoder(Kept).decode
_record_of = msgspec.json.Decoder(SprintRecord).decode

#: The version of the rules that make a stored `SprintRecord`. Increase it when a change in KPIs,
#: findings or learnings changes what a record contains: records of other versions are ignored.
RECORD_VERSION = "1"
#: Records stored in one transaction, so that other writers do not wait for long.
_RECORDS_AT_ONCE = 100

_LARGEST_NUMBER = 1 << 62
#: Sprints that a planner learns from; more would slow down each plan.
REMEMBERED = 500


class Figures(msgspec.Struct, frozen=True):
    """The state of one sprint, without observations of the forge, and its runs."""

    state: State
    runs: tuple[Run, ...]


def find_sprint(connection: sqlite3.Connection, named: str = "") -> str:
    """Return the id of a sprint named by id or number; of the last one if none is named."""
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


def sprint_numbers(connection: sqlite3.Connection) -> dict[str, int]:
    return {row["id"]: row["number"] for row in connection.execute(SQL["all"])}


def sprint_phases(connection: sqlite3.Connection) -> dict[str, str]:
    """Return the phases of all sprints by id; none for a database that is still empty."""
    if connection.execute(SQL["has_sprints"]).fetchone() is None:
        return {}
    return {row["id"]: row["phase"] for row in connection.execute(SQL["all"])}


def _hint(connection: sqlite3.Connection, named: str) -> str:
    values = {"number": named if len(named) < 19 else "", "id": named}
    if connection.execute(SQL["is_adopted"], values).fetchone():
        return f"it was imported from an older version, only its summary: caloron show {named}"
    return "caloron history lists them"


def figures_of(connection: sqlite3.Connection, sprint: str) -> Figures:
    row = connection.execute(SQL["sprint"], {"sprint": sprint}).fetchone()
    if row is None:
        raise NotFound(f"there is no sprint {sprint}", hint="caloron history lists them")
    return _figures(connection, row)


def last_figures(connection: sqlite3.Connection, last: int) -> list[Figures]:
    """Return the last `last` sprints, oldest first."""
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
    return _runs_in(connection, "", "\U0010ffff")


def runs_below(connection: sqlite3.Connection, place: str) -> tuple[Run, ...]:
    """Return the runs of a sprint (`<sprint>`) or of a task (`<sprint>/<task>`)."""
    # "0" is the character after "/".
    return _runs_in(connection, f"{place}/", f"{place}0")


def _runs_in(connection: sqlite3.Connection, low: str, high: str) -> tuple[Run, ...]:
    """Return the runs of a range of work items, in the order in which they started."""
    ends = {"low": low, "high": high}
    active = {row["item"]: row["at"] for row in connection.execute(SQL["active"], ends)}
    items: dict[str, _ItemRuns] = {}
    order: list[tuple[_ItemRuns, int]] = []
    for row in connection.execute(SQL["runs"], ends):
        name = row["item"]
        if not is_work_id(name):
            continue
        item = items.setdefault(name, _ItemRuns(name))
        before = len(item.runs)
        item.add(row["type"], row["ts"] / 1000, json.loads(row["payload"]))
        if len(item.runs) > before:
            order.append((item, before))
    runs = [item.runs[index] for item, index in order]
    for place, run in enumerate(runs):
        if run.end == "running" and run.item in active:
            # A run without an end event lasts until its last sign of life.
            seconds = max(0.0, active[run.item] - run.started_at)
            runs[place] = msgspec.structs.replace(run, seconds=seconds)
    return tuple(runs)


def lost_engines(connection: sqlite3.Connection, sprint: str) -> int:
    """Return how often an engine of a sprint was killed or crashed."""
    return int(connection.execute(SQL["lost_engines"], {"sprint": sprint}).fetchone()[0])


def waiting_states(connection: sqlite3.Connection) -> list[State]:
    """Return the sprints in which something may wait for a person, oldest first."""
    rows = connection.execute(SQL["waiting"]).fetchall()
    return [_state(connection, row) for row in rows]


def merging_sprints(connection: sqlite3.Connection, limit: int) -> list[str]:
    """Return the sprints with a merged change, newest first."""
    return [row["id"] for row in connection.execute(SQL["merging"], {"limit": limit})]


def read_kept(connection: sqlite3.Connection, last: int = REMEMBERED) -> Kept:
    """Return the learnings that cannot be derived from our own sprints.

    They include the last `last` sprints of the older program; all of them for -1.
    """
    row = connection.execute(SQL["learnings"]).fetchone()
    kept = _kept_of(row["value"]) if row else Kept()
    rows = connection.execute(SQL["adopted"], {"limit": last}).fetchall()
    imported = [remembered(row["key"], json.loads(row["text"])) for row in reversed(rows)]
    return with_adopted(kept, imported)


class _ItemRuns:
    """The processes that were started for one work item."""

    def __init__(self, name: str) -> None:
        work = WorkId.parse(name)
        self._role = work.role
        self._common: dict[str, Any] = {
            "item": name, "role": work.role, "task": work.planned_task,
        }  # fmt: skip
        self.runs: list[Run] = []
        #: Claimed, and no process was started since.
        self._is_claimed = False
        self._token = 0

    def add(self, type: str, at: float, payload: dict[str, Any]) -> None:
        match type:
            case "work_item_claimed":
                self._is_claimed, self._token = True, int(payload.get("token", 0))
            case "attempt_started":
                self._interrupt(at, "")
                self._token = int(payload.get("token", 0))
                self._begin(at, end="running")
            case "attempt_ended":
                self._end(at, payload)
            case "agent_reported":
                self._report(payload)
            case "work_item_reopened":
                self._interrupt(at, str(payload.get("reason", "")))
            case "work_item_resolved" if payload.get("status") == "cancelled":
                self._interrupt(at, NOT_NEEDED)
            case "work_item_resolved" if payload.get("status") == "failed" and self._is_claimed:
                # It failed before a process was started, such as in setup.
                self._begin(at, end="failed", exit_code=1, problem=str(payload.get("notes") or ""))

    def _begin(self, at: float, **fields: Any) -> None:
        self._is_claimed = False
        # Attempts are numbered by started processes: some claims start none.
        own = self._common | {"attempt": len(self.runs) + 1, "token": self._token}
        self.runs.append(Run(**own, started_at=at, **fields))

    def _change(self, index: int = -1, **fields: Any) -> None:
        self.runs[index] = msgspec.structs.replace(self.runs[index], **fields)

    def _stop(self, at: float, **fields: Any) -> None:
        """End the run that is in progress, if there is one."""
        if self.runs and self.runs[-1].end == "running":
            self._change(seconds=max(0.0, at - self.runs[-1].started_at), **fields)

    def _interrupt(self, at: float, reason: str) -> None:
        self._stop(at, end="interrupted", problem=reason)

    def _end(self, at: float, payload: dict[str, Any]) -> None:
        code = int(payload.get("exit_code", 0))
        problem = str(payload.get("over") or "")
        if payload.get("timed_out"):
            problem = "it timed out"
        elif code and not problem:
            line = str(payload.get("last_line") or "")
            line = line if self._role == "verify" else closing_words(line)
            problem = f"exit code {code}: {line or 'no output'}"
        self._stop(at, end="failed" if problem else "done", exit_code=code, problem=problem)

    def _report(self, payload: dict[str, Any]) -> None:
        if not self.runs:
            return
        token = int(payload.get("token", 0))
        index = next((n for n, run in enumerate(self.runs) if token and run.token == token), -1)
        if trouble := payload.get("trouble", ""):
            end = "interrupted" if trouble in PROVIDER_REFUSALS else "failed"
            detail = payload.get("detail", "")
            self._change(index, end=end, problem=f"{trouble}: {detail}" if detail else trouble)
        self._change(
            index,
            token=token or self.runs[index].token,
            framework=str(payload.get("framework", "")),
            model=str(payload.get("model", "")),
            usd=float(payload.get("usd", 0.0)),
            tokens=int(payload.get("tokens_in", 0)) + int(payload.get("tokens_out", 0)),
            tools=dict(payload.get("tools") or {}),
        )


def ended_records(connection: sqlite3.Connection, last: int = REMEMBERED) -> list[SprintRecord]:
    """Return what later sprints remember of the last ended sprints; of all of them for 0."""
    newest = connection.execute(SQL["newest"]).fetchone()[0]
    after = newest - last if last else 0
    return [record for _, record in _records(connection, after) if record.teaches]


def history_of(connection: sqlite3.Connection) -> list[tuple[int, str]]:
    """Return the number of each ended sprint with its entry in `sprints.json`."""
    entries = [
        (row["number"], history_record(record, row["number"], row["ended_at"]))
        for row, record in _records(connection)
    ]
    return [(number, json.dumps(entry, ensure_ascii=False)) for number, entry in entries]


def _records(
    connection: sqlite3.Connection, after: int = 0
) -> Iterator[tuple[sqlite3.Row, SprintRecord]]:
    """Return the rows and the records of ended sprints with a higher number than `after`."""
    values = {"after": after, "made_by": RECORD_VERSION}
    for row in connection.execute(SQL["ended"], values).fetchall():
        stored = row["record"]
        yield row, _record_of(stored) if stored else _compute_record(connection, row["id"])


def store_records(ledger: Ledger) -> None:
    """Store the records of ended sprints that have none. A trigger deletes outdated ones."""
    while True:
        with ledger.db.transaction("records") as connection:
            values = {"made_by": RECORD_VERSION, "limit": _RECORDS_AT_ONCE}
            missing = [row["id"] for row in connection.execute(SQL["missing_records"], values)]
            for sprint in missing:
                data = msgspec.json.encode(_compute_record(connection, sprint))
                row = {"sprint": sprint, "made_by": RECORD_VERSION, "data": data}
                connection.execute(SQL["put_record"], row)
        if len(missing) < _RECORDS_AT_ONCE:
            return


def _compute_record(connection: sqlite3.Connection, sprint: str) -> SprintRecord:
    figures = figures_of(connection, sprint)
    return record_of(figures.state, figures.runs, figures.state.sprint.ended_at or 0.0)


def wrong_records(connection: sqlite3.Connection) -> list[str]:
    """Return the sprints whose stored record differs from a computed one."""
    rows = connection.execute(SQL["stored_records"], {"made_by": RECORD_VERSION}).fetchall()
    return [
        row["sprint"]
        for row in rows
        if bytes(row["data"]) != msgspec.json.encode(_compute_record(connection, row["sprint"]))
    ]


def forget_record(ledger: Ledger, sprint: str) -> None:
    """Delete a stored record, so that it is computed again."""
    with ledger.db.transaction("records") as connection:
        connection.execute(SQL["forget_record"], {"sprint": sprint})
