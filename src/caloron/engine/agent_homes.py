"""The home of each agent of a project: its errands, its diary and its cycles, told by the ledger.

The sprint's truth stays in the ledger: everything here follows its diary line by line, each by its
key, so that a home that is deleted or falls behind is brought up again. A cycle is one wake that
acted, from the start of an agent's process to the end of its work.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from caloron.agentstate.cycles import Cycles, Places
from caloron.agentstate.cycles.report import report_of
from caloron.agentstate.home import AgentHome
from caloron.agentstate.looking import look
from caloron.agentstate.records import OPEN, TERMINAL
from caloron.domain.identities import agent_of_item
from caloron.errors import CaloronError, StoreError
from caloron.ledger.ledger import SQL, Ledger
from caloron.store.database import open_read_only, store_error

_HOST = "caloron"
#: From where on the homes follow the diary, and how far they have.
_FIRST, _THROUGH = "agent_homes/first", "agent_homes/through"
#: The same of one home, in its own file: one that is deleted begins again.
_FOLLOWED = "CREATE TABLE IF NOT EXISTS caloron_followed (id INTEGER PRIMARY KEY, through INTEGER)"
_FOLLOW = "INSERT OR REPLACE INTO caloron_followed VALUES (1, ?)"
_NEWS = """
SELECT id, ts, type, actor, work_item_id AS item, payload FROM events
WHERE id > ? AND work_item_id IS NOT NULL ORDER BY id
"""
_BEFORE = "SELECT COALESCE(min(id), 1) - 1 AS id FROM events WHERE work_item_id LIKE ? || '/%'"
#: The true lease is the shim's; this one only says who has the errand.
_LEASE_MS = 30 * 86_400_000
_MOMENT_S = 0.3
_DAMAGED = ("not a database", "malformed")
#: What opens a prompt.
_LINES, _LONGEST = 5, 2_000
_COPIED = (
    "attempt_started", "attempt_ended", "attempt_lost", "agent_reported", "work_salvaged",
    "work_dropped",
)  # fmt: skip


class AgentHomes:
    """The homes of one project; whoever writes to them holds the project."""

    def __init__(
        self,
        folder: Path,
        ledger: Ledger,
        sprint: str,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.folder = folder
        self._ledger = ledger
        self._sprint = sprint
        self._tell = tell or (lambda _line: None)
        self._lock = threading.Lock()
        self._told: set[str] = set()
        self._news, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="homes", daemon=True)

    def start(self) -> None:
        """Follow what is noticed, a moment later and beside the loop."""
        self._thread.start()

    def close(self) -> None:
        """Bring the homes up to what happened last, and follow no more."""
        self._ended.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join()
        self.catch_up()

    def notice(self) -> None:
        """An agent has begun or ended; the diary says so now, or in a moment."""
        self._news.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._news.wait()
            self._news.clear()
            if not self._ended.wait(_MOMENT_S):
                self.catch_up()

    def opening(self, agent: str) -> str:
        """What an agent is told of itself when it wakes; empty for the first time."""
        self.catch_up()
        with self._forgiving(agent):
            return about(self.folder, agent, waking=True)
        return ""

    @contextmanager
    def _forgiving(self, agent: str) -> Iterator[None]:
        """A home that cannot be used is told once, and holds nobody up: the ledger has it all."""
        try:
            yield
        except (CaloronError, OSError) as error:
            line = f"the home of {agent} is left as it is for now: {error}"
            if line not in self._told:
                self._told.add(line)
                self._tell(line)

    def catch_up(self) -> None:
        """Follow the ledger's diary to its end; a home that cannot be written follows later."""
        with self._lock:
            news = self._ledger.db.rows(_NEWS, (self._through(),))
            for agent in sorted({agent_of_item(row["item"]) for row in news} - {""}):
                with self._forgiving(agent):
                    self._follow(agent)
            if news:
                self._ledger.put(_THROUGH, str(news[-1]["id"]))

    def write_pages(self) -> None:
        """Dashboards and retros, for people who look into the folders."""
        self.catch_up()
        for place in sorted(self.folder.glob("*/state.sqlite")):
            with self._forgiving(place.parent.name), AgentHome(place.parent) as home:
                home.regenerate_dashboard()
                home.write_retro()

    def _through(self) -> int:
        known = self._ledger.get(_THROUGH)
        return int(known) if known else self._first()

    def _follow(self, agent: str) -> None:
        """Bring one home up; a file in it that is no database is kept beside, and made anew."""
        where = self.folder / agent
        try:
            self._bring_up(where, agent)
        except StoreError as error:
            # Locked, full or read-only is not damaged: such a home follows later.
            if not any(words in str(error) for words in _DAMAGED):
                raise
            file = where / "state.sqlite"
            kept = file.with_name(f"{file.name}.corrupt-{time.time_ns()}")
            file.rename(kept)
            for beside in ("-wal", "-shm"):
                file.with_name(f"{file.name}{beside}").unlink(missing_ok=True)
            self._tell(f"{error}; it is kept as {kept}, and made anew")
            self._bring_up(where, agent)

    def _bring_up(self, where: Path, agent: str) -> None:
        with AgentHome.scaffolded(where, _HOST, agent) as home:
            # What is lost with the machine is told again by the ledger.
            home.db.rows("PRAGMA synchronous = OFF")
            follower = _Follower(home, Cycles(places_in(where)), agent)
            since = max(follower.through, self._first())
            for row in self._ledger.db.rows(_NEWS, (since,)):
                if agent_of_item(row["item"]) == agent:
                    follower.take_in(row)

    def _first(self) -> int:
        """Where the homes of this project begin: earlier sprints are left to the ledger."""
        if not (known := self._ledger.get(_FIRST)):
            row = self._ledger.db.row(_BEFORE, (self._sprint,))
            known = str(row["id"]) if row else "0"
            self._ledger.put(_FIRST, known)
        return int(known)


def places_in(where: Path) -> Places:
    """Where the cycles of an agent of a sprint are kept: in its home."""
    return Places(where.name, where / "cycle.json", where / "cycle.log")


class Disagreement(NamedTuple):
    """Something in a home that is not as the ledger tells it."""

    #: The errand, by its id.
    target: str
    expected: str
    found: str


def disagreements(where: Path, ledger: sqlite3.Connection) -> list[Disagreement]:
    """In what a home differs from the ledger, as far as it has followed; changes nothing.

    A home that is behind is no disagreement, and neither are errands that the ledger never knew.
    """
    followed = list(_looked(where, "SELECT through FROM caloron_followed"))
    if not followed:
        return []
    through = int(followed[0]["through"])
    (last,) = ledger.execute("SELECT COALESCE(max(id), 0) FROM events").fetchone()
    if through > last:
        return [Disagreement("caloron_followed", f"at most {last}", str(through))]
    found = {row["id"]: row["status"] for row in _looked(where, "SELECT * FROM work_items")}
    return [
        Disagreement(item, status, found.get(item, "it is not there"))
        for item, status in _told_statuses(ledger, where.name, through).items()
        if found.get(item) != status
    ]


def _told_statuses(ledger: sqlite3.Connection, agent: str, through: int) -> dict[str, str]:
    """How each errand of an agent stands by the ledger's diary, up to one of its lines."""
    first = ledger.execute(SQL["get_kv"], {"key": _FIRST}).fetchone()
    told: dict[str, str] = {}
    for row in ledger.execute(_NEWS, (int(first["value"]) if first else 0,)):
        if row["id"] <= through and agent_of_item(row["item"]) == agent:
            told.setdefault(row["item"], "pending")
            if status := status_after(row["type"], json.loads(row["payload"])):
                told[row["item"]] = status
    return told


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


def _looked(where: Path, query: str) -> Iterator[sqlite3.Row]:
    """Rows of a home's file, without changing it; none if it is not there or has no such table."""
    file = where / "state.sqlite"
    if not file.exists():
        return
    with closing(open_read_only(file)) as connection:
        try:
            yield from connection.execute(query)
        except sqlite3.Error as error:
            if "no such table" not in str(error):
                raise store_error(file, error) from error


class _Follower:
    """Brings one home up by one line of the ledger after the other; each counts once."""

    def __init__(self, home: AgentHome, cycles: Cycles, agent: str) -> None:
        self._home = home
        self._errands = home.errands
        self._cycles = cycles
        self._agent = agent
        home.db.rows(_FOLLOWED)
        row = home.db.row("SELECT through FROM caloron_followed")
        self.through = int(row["through"]) if row else 0

    def take_in(self, row: sqlite3.Row) -> None:
        item, told = str(row["item"]), json.loads(row["payload"])
        self._know(item)
        match row["type"]:
            case "attempt_started":
                self._began(item, told)
            case "attempt_ended":
                self._step(_ended(told), "failure" if told.get("exit_code") else "success")
            case "attempt_lost":
                self._step(f"the last it wrote: {told.get('last_line')}", "partial")
            case "work_item_resolved":
                self._resolved(item, told)
            case "work_item_reopened":
                self._lost(item, str(told.get("reason") or "it was given back"))
        if row["type"] in _COPIED:
            key = f"ledger/{row['id']}"
            self._home.diary.append(row["type"], row["payload"], item=item, key=key, ts=row["ts"])
        # Whoever dies before this does the last line again, which changes nothing.
        self._home.db.rows(_FOLLOW, (row["id"],))

    def _know(self, item: str) -> None:
        sprint, task, work = item.split("/")
        told = {"sprint": sprint, "task": task, "work": work}
        self._errands.enqueue(item, work.partition("-")[2], told, owner=self._agent)

    def _began(self, item: str, told: dict[str, Any]) -> None:
        if self._errands.get(item).status == "pending":
            self._errands.claim(item, self._agent, lease_ms=_LEASE_MS)
        sprint, task, work = item.split("/")
        step = f"began {work} of {task}, attempt {told.get('attempt')}"
        if self._cycles.look().state.status != "open":
            self._cycles.begin(work=f"{sprint}/{task}")
        self._step(step, "partial")

    def _step(self, action: str, result: str) -> None:
        state = self._cycles.look().state
        if state.status == "open" and state.last_action != action:
            self._cycles.act(action, result=result)

    def _resolved(self, item: str, told: dict[str, Any]) -> None:
        status, notes = str(told.get("status")), str(told.get("notes") or "")
        if self._errands.get(item).status not in TERMINAL:
            self._errands.resolve(item, status, notes=notes)
        self._step(f"{item.rpartition('/')[2]} ended as {status}", _result(status))
        if self._alone():
            left = f"{item}: {notes}" if notes else item
            # What is done is not in progress any more; what failed is, and is counted.
            self._cycles.end(_result(status), artefacts=(left,), work=_over(status))

    def _lost(self, item: str, reason: str) -> None:
        if self._errands.get(item).status == "in_flight":
            self._errands.release(item, reason=reason)
        if self._alone():
            self._cycles.recover(why=reason)

    def _alone(self) -> bool:
        """Whether a cycle is open, and no other work of this agent is in it."""
        at_work = queue_of(self._home.where, "in_flight")
        return self._cycles.look().state.status == "open" and not at_work


def _ended(told: dict[str, Any]) -> str:
    last = str(told.get("last_line") or "").strip()
    how = f"its process ended with {told.get('exit_code', 0)}"
    return f"{how}: {last}" if last else how


def _over(status: str) -> str | None:
    return None if status == "failed" else ""


def _result(status: str) -> str:
    return {"done": "success", "failed": "failure"}.get(status, "partial")


def about(folder: Path, agent: str, *, waking: bool = False) -> str:
    """What there is to say of an agent: its last cycle, its queue, its diary, its retros."""
    where = folder / agent
    state = Cycles(places_in(where)).look().state
    if not state.cycle_number:
        return ""
    lines = report_of(state).text().splitlines()[1:]
    number = state.cycle_number
    begin = f"You are {agent}, and this is your cycle {number + 1}." if waking else ""
    lines = [begin, *lines] if begin else [f"Cycles of {agent}: {number}", *lines]
    queue = [errand for errand in queue_of(where) if errand["status"] in OPEN]
    if queue:
        lines.append("Queue:")
        lines += [f"- {errand['id']} ({errand['status']})" for errand in queue[:_LINES]]
    lines.append("Diary, newest first:")
    lines += [f"- {_shown(event)}" for event in diary_of(where, _LINES)]
    if retros := retros_of(where):
        lines.append(f"Last retro: {retros[-1].name}")
    text = "\n".join(lines)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _shown(event: dict[str, Any]) -> str:
    told = json.loads(event["payload"])
    said = told.get("last_line") or told.get("notes") or told.get("reason") or told.get("status")
    item = str(event["work_item_id"] or "").partition("/")[2]
    return " ".join(str(part) for part in (event["type"], item, said or "") if part)[:200]


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
