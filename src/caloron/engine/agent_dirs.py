"""Exports queue, event log and cycles of a project's agents from the ledger into their folders.

The ledger is the truth. An export writes the events since the last one, whose id is stored in the
folder's own `state.sqlite`; a folder, or a file in it, that was deleted is written again. Files and
errands of people in the folder are never overwritten: they go into the agent's next prompt.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from caloron.agentstate.database import QUEUE
from caloron.agentstate.instance import AgentInstance
from caloron.agentstate.work_items import MirroredItem, mirror_item
from caloron.cycles.state import CycleState, Entry, Unreadable, read, render
from caloron.cycles.storage import Log, log_line
from caloron.domain.model.roles import SHARED_AGENTS
from caloron.domain.reporting.identities import agent_of_item
from caloron.engine.agent_cycles import CycleFold, WorkEvent
from caloron.engine.agent_input import settle_errands, text_for
from caloron.engine.agent_view import STATE, describe, location_in
from caloron.errors import CaloronError, StoreError
from caloron.ledger.ledger import Ledger
from caloron.store import log
from caloron.store.database import is_damage, open_read_only, store_error
from caloron.store.files import read_plain, write_atomic

_HOST = "caloron"
_EXPORTED = (
    "work_item_created", "work_item_claimed", "work_item_resolved", "work_item_reopened",
    "attempt_started", "attempt_ended", "attempt_lost", "agent_reported", "work_salvaged",
    "work_dropped",
)  # fmt: skip
_FIELDS = "e.id, e.ts, e.type, e.work_item_id AS item, e.payload"
#: An item is named sprint/task/number-role: the primary key finds those of one task.
_OF_TASK = f"""
SELECT {_FIELDS} FROM sprints s
CROSS JOIN work_items w
    ON w.id >= s.id || '/' || :agent || '/' AND w.id < s.id || '/' || :agent || '0'
CROSS JOIN events e ON e.work_item_id = w.id
WHERE e.id > :since AND e.id <= :last ORDER BY e.id
"""
_OF_ROLE = f"""
SELECT {_FIELDS} FROM events e
WHERE e.id > :since AND e.id <= :last AND e.work_item_id LIKE '%-' || :role ORDER BY e.id
"""
_LAST = "SELECT COALESCE(max(id), 0) AS id FROM events"
_ITEMS = "SELECT id FROM work_items WHERE id >= :sprint || '/' AND id < :sprint || '0'"
_PROGRESS = """
CREATE TABLE IF NOT EXISTS caloron_export
    (id INTEGER PRIMARY KEY, through INTEGER, seq INTEGER, busy TEXT)
"""
_STORE = "INSERT OR REPLACE INTO caloron_export VALUES (1, ?, ?, ?)"
#: Version 0.4 stored its position in this table.
_OLDER = "caloron_followed"
#: The log of a sprint's agent keeps this many entries; the ledger has them all.
_LOG_ENTRIES = 2_000


class AgentDirs:
    """The folders of one project's agents, for the engine of one sprint."""

    def __init__(
        self,
        folder: Path,
        ledger: Ledger,
        sprint: str,
        notify: Callable[[str], object],
    ) -> None:
        self.folder = folder
        self._ledger = ledger
        self._sprint = sprint
        self._notify = notify
        self._reported: set[str] = set()

    def opening(self, agent: str, item: str) -> tuple[str, str]:
        """Return the start of an agent's prompt: its own history, and the input of people.

        A folder that cannot be used is reported once and delays no agent.
        """
        # A task of a later sprint may have the same id, and is another task.
        sprint = "" if agent in SHARED_AGENTS.values() else self._sprint
        try:
            with closing(open_read_only(self._ledger.db.path)) as ledger:
                export(self.folder / agent, ledger)
                history = describe(self.folder, agent, waking=True, sprint=sprint)
                return history, text_for(self.folder / agent, ledger, item)
        except (CaloronError, OSError, sqlite3.Error) as error:
            self._report(agent, error)
            return "", ""

    def export_sprint(self, *, pages: bool = False) -> None:
        """Export every agent of the sprint; with `pages`, also dashboards and retros."""
        rows = self._ledger.db.rows(_ITEMS, {"sprint": self._sprint})
        for agent in sorted({agent_of_item(row["id"]) for row in rows} - {""}):
            try:
                with closing(open_read_only(self._ledger.db.path)) as ledger:
                    export(self.folder / agent, ledger)
                if pages:
                    with AgentInstance(self.folder / agent) as instance:
                        instance.regenerate_dashboard()
                        instance.write_retro()
            except (CaloronError, OSError, sqlite3.Error) as error:
                self._report(agent, error)

    def _report(self, agent: str, error: Exception) -> None:
        log.warning("the folder of an agent is not updated", error=error, agent=agent)
        line = f"the folder of agent {agent} is not updated: {error}"
        if line not in self._reported:
            self._reported.add(line)
            self._notify(line)


class Difference(NamedTuple):
    """Something in an agent's folder that is not as the ledger has it."""

    #: The id of an item, or the name of a file.
    target: str
    expected: str
    found: str


def export(agent_dir: Path, ledger: sqlite3.Connection, *, compare: bool = False) -> None:
    """Bring one folder up to the ledger; with `compare`, also correct what was changed by hand."""
    try:
        _export(agent_dir, ledger, compare=compare)
    except StoreError as error:
        if not is_damage(error.__cause__):
            # A full disk or a file without permission is not damage.
            raise
        kept = set_aside_database(agent_dir / STATE, "corrupt")
        log.warning("a damaged state.sqlite of an agent is replaced", error=error, kept=kept)
        _export(agent_dir, ledger, compare=compare)


def _export(agent_dir: Path, ledger: sqlite3.Connection, *, compare: bool) -> None:
    (last,) = ledger.execute(_LAST).fetchone()
    progress = _progress(agent_dir)
    if progress.through > last:
        # Another ledger wrote this file: the ids of the two have nothing in common.
        set_aside_database(agent_dir / STATE, "other")
    with AgentInstance.scaffolded(agent_dir, _HOST, agent_dir.name) as instance:
        instance.db.rows(_PROGRESS)
        with instance.db.transaction("export") as connection:
            progress = _progress_in(connection)
            history = _read_cycles(agent_dir) if not compare else None
            if history is None or history.state.seq != progress.seq:
                history = _History(CycleState(agent_dir.name), [])
                fold, since = CycleFold(history.state), 0
            else:
                fold, since = CycleFold(history.state, progress.busy), progress.through
            statuses: dict[str, WorkEvent] = {}
            for event in _events(ledger, agent_dir.name, since, last):
                fold.add(event)
                if event.status:
                    statuses[event.item] = event
                if event.id > progress.through and event.type in _EXPORTED:
                    mirror_item(connection, _item(event.item, agent_dir.name), event.ts)
                    QUEUE.append_event(
                        connection, event.type, event.payload,
                        actor=agent_dir.name, item=event.item, ts=event.ts,
                    )  # fmt: skip
            for item, event in statuses.items():
                mirror_item(connection, _item(item, agent_dir.name), event.ts, event.status)
            _write_cycles(agent_dir, fold.state, [*history.entries, *fold.entries])
            stored = (last, fold.state.seq, json.dumps(sorted(fold.busy)))
            connection.execute(_STORE, stored)
        settle_errands(instance, ledger)


def differences(agent_dir: Path, ledger: sqlite3.Connection) -> list[Difference]:
    """Compare a folder with the events that were exported into it; changes nothing.

    A folder that is behind is right, and so are errands that the ledger does not know.
    """
    try:
        progress = _progress(agent_dir)
        with closing(_open(agent_dir)) as connection:
            rows = connection.execute("SELECT id, status FROM work_items")
            present = {row["id"]: row["status"] for row in rows}
    except FileNotFoundError:
        return []
    except (StoreError, sqlite3.Error) as error:
        return [Difference(STATE, "a file that can be read", str(error))]
    (last,) = ledger.execute(_LAST).fetchone()
    if not 0 < progress.through <= last or progress.seq < 0:
        # Not exported yet, or by version 0.4, or from another ledger: the next export writes it.
        return []
    fold, statuses = CycleFold(CycleState(agent_dir.name)), {}
    for event in _events(ledger, agent_dir.name, 0, progress.through):
        fold.add(event)
        if event.status:
            statuses[event.item] = event.status
    differing = [
        Difference(item, status, present.get(item, "missing"))
        for item, status in statuses.items()
        if present.get(item) != status
    ]
    history = _read_cycles(agent_dir)
    if history is None or history.state != fold.state or history.entries[-1:] != fold.entries[-1:]:
        expected = f"cycle {fold.state.cycle_number}, {fold.state.status}"
        differing.append(Difference(location_in(agent_dir).state.name, expected, "other content"))
    return differing


class _Progress(NamedTuple):
    through: int = 0
    seq: int = 0
    busy: tuple[str, ...] = ()


class _History(NamedTuple):
    state: CycleState
    entries: list[Entry]


def _progress(agent_dir: Path) -> _Progress:
    if not (agent_dir / STATE).exists():
        return _Progress()
    with closing(_open(agent_dir)) as connection:
        try:
            return _progress_in(connection)
        except sqlite3.Error as error:
            raise store_error(agent_dir / STATE, error) from error


def _open(agent_dir: Path) -> sqlite3.Connection:
    if not (agent_dir / STATE).exists():
        raise FileNotFoundError(agent_dir / STATE)
    return open_read_only(agent_dir / STATE)


def _progress_in(connection: sqlite3.Connection) -> _Progress:
    names = "SELECT name FROM sqlite_master WHERE name IN ('caloron_export', 'caloron_followed')"
    tables = {row["name"] for row in connection.execute(names)}
    row = None
    if "caloron_export" in tables:
        row = connection.execute("SELECT through, seq, busy FROM caloron_export").fetchone()
    if row is not None:
        return _Progress(row["through"], row["seq"], tuple(json.loads(row["busy"])))
    if _OLDER in tables:
        row = connection.execute(f"SELECT through FROM {_OLDER}").fetchone()
    return _Progress(row["through"] if row else 0, -1)


def _events(ledger: sqlite3.Connection, agent: str, since: int, last: int) -> Iterator[WorkEvent]:
    """The events about an agent's work, in their order."""
    role = next((role for role, name in SHARED_AGENTS.items() if name == agent), "")
    values: dict[str, Any] = {"agent": agent, "role": role, "since": since, "last": last}
    for row in ledger.execute(_OF_ROLE if role else _OF_TASK, values):
        if agent_of_item(row["item"]) == agent:
            yield WorkEvent(
                row["id"], row["ts"], row["type"], row["item"], json.loads(row["payload"])
            )


def _item(item: str, agent: str) -> MirroredItem:
    sprint, task, work = item.split("/")
    payload = {"sprint": sprint, "task": task, "work": work}
    return MirroredItem(item, work.partition("-")[2], payload, agent)


def _read_cycles(agent_dir: Path) -> _History | None:
    """The exported cycles; None if a file is missing or was changed."""
    location = location_in(agent_dir)
    try:
        state = read(read_plain(location.state), agent_dir.name)
    except (FileNotFoundError, Unreadable, StoreError):
        # The export writes it again.
        return None
    entries = Log(location.log).newest(_LOG_ENTRIES)
    complete = entries and entries[-1]["seq"] == state.seq
    return _History(state, entries) if complete or not state.seq else None


def _write_cycles(agent_dir: Path, state: CycleState, entries: list[Entry]) -> None:
    location = location_in(agent_dir)
    lines = b"".join(log_line(entry) + b"\n" for entry in entries[-_LOG_ENTRIES:])
    for path, content in ((location.log, lines), (location.state, render(state))):
        with suppress(FileNotFoundError, StoreError):
            # A file that cannot be read is replaced.
            if read_plain(path) == content:
                continue
        write_atomic(path, content)


def set_aside_database(file: Path, reason: str) -> Path:
    """Rename a database with its write-ahead log, which may hold the last changes."""
    kept = file.with_name(f"{file.name}.{reason}-{time.time_ns()}")
    file.rename(kept)
    wal = file.with_name(f"{file.name}-wal")
    with suppress(FileNotFoundError):
        if wal.stat().st_size:
            wal.rename(kept.with_name(f"{kept.name}-wal"))
    for suffix in ("-wal", "-shm"):
        file.with_name(f"{file.name}{suffix}").unlink(missing_ok=True)
    return kept
