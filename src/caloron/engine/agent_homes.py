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
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from caloron.agentstate.copies import put
from caloron.agentstate.file import QUEUE
from caloron.agentstate.home import AgentHome
from caloron.domain.identities import SHARED_AGENTS, agent_of_item
from caloron.engine.home_follower import RESTORED, Follower, copied, status_after
from caloron.engine.home_view import about, cycles_in
from caloron.errors import CaloronError, StoreError
from caloron.ledger.ledger import SQL, Ledger
from caloron.store import log
from caloron.store.database import open_read_only, store_error

_HOST = "caloron"
#: From where on the homes follow the diary, how far all of them have, and since when they were
#: compared with it.
_FIRST, _THROUGH = "agent_homes/first", "agent_homes/through"
_COMPARED = "agent_homes/compared_at"
_LINE = "e.id, e.ts, e.type, e.work_item_id AS item, e.payload"
_RESTORES = f"SELECT {_LINE} FROM events e WHERE e.type = '{RESTORED}' AND e.id > :since"
#: The lines since a moment, for an agent that is hardly behind.
_RECENT = f"""
SELECT {_LINE} FROM events e
WHERE e.id > :since AND (e.work_item_id IS NOT NULL OR e.type = '{RESTORED}') ORDER BY e.id
"""
#: An agent's own lines, however long the diary is: the indices of items and of their lines find
#: them. An item is named sprint/task/number-role.
_MINE = "(instr(w.id, '/' || :agent || '/') OR w.id LIKE '%-' || :role)"
_OWN = f"""
SELECT {_LINE} FROM work_items w CROSS JOIN events e ON e.work_item_id = w.id
WHERE {_MINE} AND e.id > :since UNION ALL {_RESTORES} ORDER BY 1
"""
_LAST_MOVES = f"""
SELECT e.work_item_id AS item, e.type, e.payload, max(e.id)
FROM work_items w CROSS JOIN events e ON e.work_item_id = w.id
WHERE {_MINE} AND e.id > :first AND e.id <= :through
  AND e.type IN ('work_item_created', 'attempt_started', 'work_item_resolved',
                 'work_item_reopened')
GROUP BY w.id
"""
_ITEMS = "SELECT DISTINCT work_item_id AS item FROM events WHERE id > ? AND work_item_id NOT NULL"
_STATUSES = "SELECT id, status FROM work_items"
_BEFORE = """
SELECT COALESCE(min(id), 1) - 1 AS id FROM events
WHERE work_item_id >= ? || '/' AND work_item_id < ? || '0'
"""
_LAST = "SELECT COALESCE(max(id), 0) AS id FROM events"
_SPRINT_ITEMS = "SELECT id AS item FROM work_items WHERE id >= ? || '/' AND id < ? || '0'"
_MOMENT_S = 0.3
#: A shim records the start of its agent itself, on a busy machine long after it was noticed.
_LOOK_AGAIN_S = 3.0
#: How long an agent's start, or the end of a sprint, waits for homes that are behind.
_PATIENCE_S = 1.0
#: Lines that are taken in together: one write to disk for all of them.
_BATCH = 500
#: As many lines are read faster than an agent's own are found.
_FEW = 20_000
_DAMAGED = ("not a database", "malformed")
#: How far a home followed its ledger; the target of a disagreement with another one.
FOLLOWED = "caloron_followed"
FILE = "state.sqlite"
CYCLES = "cycle.json"
_ANEW = (FOLLOWED, FILE, CYCLES)
_PUT_RIGHT = "the ledger has it so"
#: What of a home is told by the ledger.
_TOLD = (FILE, CYCLES, "cycle.log")

_GiveUp = Callable[[], bool]


class AgentHomes:
    """The homes of one project; whoever writes to them holds the project.

    A home may be behind its ledger: nothing waits for it longer than a moment. It catches up in
    batches, in a thread that can be ended between two of them and goes on where the home stands.
    """

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
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._told: set[str] = set()
        #: Agents whose homes were compared with the ledger, and those whose homes were changed.
        self._compared: set[str] = set()
        self._changed: set[str] = set()
        self._looked_through = False
        self._news, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="homes", daemon=True)

    def start(self) -> None:
        """Follow what is noticed, a moment later and beside the loop."""
        self._thread.start()

    def close(self) -> None:
        """Follow no more; the agents of this sprint are brought up if that takes only a moment."""
        self._ended.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join()
        self.catch_up_sprint()

    def notice(self) -> None:
        """An agent has begun or ended; the diary says so now, or in a moment."""
        self._news.set()

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._news.wait(_LOOK_AGAIN_S)
                self._news.clear()
                if not self._ended.wait(_MOMENT_S):
                    self.catch_up(self._ended.is_set, self._ended.wait)
        except Exception as error:  # noqa: BLE001 - homes stop no sprint, whatever it is
            log.error("agents' homes are not updated", error=error)
            self._tell(f"agents' homes are not updated: internal error, please report: {error!r}")

    def opening(self, agent: str) -> str:
        """What an agent is told of itself when it wakes; empty for the first time.

        Also empty if its home is so far behind that the agent would have to wait for it: what a
        home tells that is behind is not true.
        """
        # A task of a later sprint may have the same id, and is another task.
        sprint = "" if agent in SHARED_AGENTS.values() else self._sprint
        with self._forgiving(f"the home of {agent}"):
            if self._follow(agent, _patience()):
                return about(self.folder, agent, waking=True, sprint=sprint)
            self._tell(f"the home of {agent} is behind; it starts without what its home tells")
        return ""

    @contextmanager
    def _forgiving(self, what: str) -> Iterator[None]:
        """A home that cannot be used is told once, and holds nobody up: the ledger has it all."""
        try:
            yield
        except (CaloronError, OSError, sqlite3.Error) as error:
            log.warning("a home of an agent is left as it is", error=error, home=what)
            line = f"{what} is left as it is for now: {error}"
            if line not in self._told:
                self._told.add(line)
                self._tell(line)

    def catch_up(
        self, give_up: _GiveUp = lambda: False, rest: Callable[[float], object] | None = None
    ) -> None:
        """Follow the ledger's diary to its end; a home that cannot be written follows later.

        `rest` is called with the seconds that a batch took: what is urgent comes first.
        """
        with self._forgiving("each home that is behind"), self._reading() as ledger:
            began, (last,) = time.time(), ledger.execute(_LAST).fetchone()
            agents = self._with_news(ledger) if self._looked_through else self._all(ledger)
            for agent in agents:
                with self._forgiving(f"the home of {agent}"):
                    self._follow(agent, give_up, rest)
                if give_up():
                    return
            if self._through() < last:
                self._ledger.put(_THROUGH, str(last))
            if not self._looked_through:
                self._looked_through = True
                self._ledger.put(_COMPARED, str(began))

    def catch_up_sprint(self) -> None:
        """The same for the agents of this sprint, as far as a moment is enough."""
        give_up = _patience()
        with self._forgiving("each home that is behind"), self._reading() as ledger:
            for agent in self._of_sprint(ledger):
                with self._forgiving(f"the home of {agent}"):
                    self._follow(agent, give_up)
                if give_up():
                    return

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own: a long look must not hold up those who write the ledger."""
        path = self._ledger.db.path
        with closing(open_read_only(path)) as connection:
            try:
                yield connection
            except sqlite3.Error as error:
                raise store_error(path, error) from error

    def _of_sprint(self, ledger: sqlite3.Connection) -> list[str]:
        found = ledger.execute(_SPRINT_ITEMS, (self._sprint, self._sprint))
        return sorted({agent_of_item(row["item"]) for row in found} - {""})

    def _with_news(self, ledger: sqlite3.Connection, since: int | None = None) -> list[str]:
        """The agents of lines that are not in every home yet; those of this sprint first."""
        since = self._through() if since is None else since
        found = {agent_of_item(row["item"]) for row in ledger.execute(_ITEMS, (since,))}
        for row in ledger.execute(_RESTORES, {"since": since}):
            found |= _agents_of(row)
        ours = [agent for agent in self._of_sprint(ledger) if agent in found]
        return [*ours, *sorted(found - set(ours) - {""})]

    def _all(self, ledger: sqlite3.Connection) -> list[str]:
        """The first time also those whose home is lost, or was changed since it was compared."""
        news, known = self._with_news(ledger), self._with_news(ledger, self._first())
        compared_at = float(self._ledger.get(_COMPARED) or 0)
        written = {agent: _written_at(self.folder / agent) for agent in known}
        more = [agent for agent, at in written.items() if not at or at >= compared_at]
        return list(dict.fromkeys((*news, *more)))

    def write_pages(self) -> None:
        """Dashboards and retros, for people who look into the folders."""
        self.catch_up_sprint()
        for agent in sorted(self._changed):
            with self._forgiving(f"the home of {agent}"), AgentHome(self.folder / agent) as home:
                home.regenerate_dashboard()
                home.write_retro()

    def _through(self) -> int:
        known = self._ledger.get(_THROUGH)
        return int(known) if known else self._first()

    def _follow(
        self, agent: str, give_up: _GiveUp, rest: Callable[[float], object] | None = None
    ) -> bool:
        """Bring one home up; False if that was given up before its end.

        A file in it that is no database is kept beside, and made anew.
        """
        lock, where = self._locks[agent], self.folder / agent
        while not lock.acquire(timeout=_MOMENT_S):
            if give_up():
                return False
        try:
            self._compare(agent)
            return self._bring_up(where, agent, give_up, rest)
        except StoreError as error:
            # Locked, full or read-only is not damaged: such a home follows later.
            if not any(words in str(error) for words in _DAMAGED):
                raise
            kept = kept_aside(where / FILE, "corrupt")
            log.warning("a damaged home of an agent is replaced", error=error, kept=kept)
            self._tell(f"{error}; it is kept as {kept}, and made anew")
            return self._bring_up(where, agent, give_up, rest)
        finally:
            lock.release()

    def _compare(self, agent: str) -> None:
        """Correct what was changed in a home by hand, once in the life of this process."""
        if agent in self._compared:
            return
        with self._reading() as ledger:
            wrong = disagreements(self.folder / agent, ledger)
        for one in mend(self.folder / agent, wrong):
            self._changed.add(agent)
            said = f"{one.target} is {one.expected}, not {one.found}"
            self._tell(f"the home of {agent} was put right: {said}")
        self._compared.add(agent)

    def _bring_up(
        self, where: Path, agent: str, give_up: _GiveUp, rest: Callable[[float], object] | None
    ) -> bool:
        given = self._leave_another_ledger(where)
        with AgentHome.scaffolded(where, _HOST, agent) as home, self._reading() as ledger:
            # What is lost with the machine is told again by the ledger.
            home.db.rows("PRAGMA synchronous = OFF")
            busy_at = partial(_busy_at, ledger, agent, self._first())
            follower = Follower(home, agent, busy_at, given)
            for batch in _batches(self._lines(ledger, agent, follower.since)):
                began = time.monotonic()
                self._changed.add(agent)
                follower.take_in(batch)
                if give_up():
                    return False
                if rest and len(batch) == _BATCH:
                    rest(time.monotonic() - began)
            follower.finish()
        return True

    def _lines(self, ledger: sqlite3.Connection, agent: str, since: int) -> Iterator[sqlite3.Row]:
        """The lines of the diary that concern an agent, from one on, in their order."""
        values = _own(agent) | {"since": max(since, self._first())}
        (last,) = ledger.execute(_LAST).fetchone()
        sql = _RECENT if last - values["since"] < _FEW else _OWN
        return (row for row in ledger.execute(sql, values) if agent in _agents_of(row))

    def _leave_another_ledger(self, where: Path) -> int:
        """A home that knows more than the ledger was told by another one: it begins anew.

        Gives the number of its last cycle there.
        """
        last = self._ledger.db.rows(_LAST)[0]["id"]
        state = cycles_in(where).look().state
        if max(_followed(where)[0], state.follows) <= last:
            return 0
        for name in _TOLD:
            if (where / name).exists():
                kept_aside(where / name, "other")
        self._tell(f"{where} followed another ledger; that is kept beside, and it begins anew")
        return state.cycle_number

    def _first(self) -> int:
        """Where the homes of this project begin: earlier sprints are left to the ledger."""
        if not (known := self._ledger.get(_FIRST)):
            row = self._ledger.db.row(_BEFORE, (self._sprint, self._sprint))
            known = str(row["id"]) if row else "0"
            self._ledger.put(_FIRST, known)
        return int(known)


def _patience() -> _GiveUp:
    until = time.monotonic() + _PATIENCE_S
    return lambda: time.monotonic() > until


def _batches(rows: Iterator[sqlite3.Row]) -> Iterator[list[sqlite3.Row]]:
    while batch := list(islice(rows, _BATCH)):
        yield batch


def _written_at(where: Path) -> float:
    """When the file of a home was last written; 0: there is none."""
    files = (where / FILE, where / f"{FILE}-wal")
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


class Disagreement(NamedTuple):
    """Something in a home that is not as the ledger tells it."""

    #: The errand, by its id; or `FOLLOWED`, `FILE` or `CYCLES`: the home has to begin anew.
    target: str
    expected: str
    found: str


def disagreements(where: Path, ledger: sqlite3.Connection) -> list[Disagreement]:
    """In what a home differs from the ledger, as far as it has followed; changes nothing.

    A home that is behind is no disagreement, and neither are errands that the ledger never knew.
    """
    (last,) = ledger.execute(_LAST).fetchone()
    try:
        through, number = _followed(where)
        here = {row["id"]: row["status"] for row in _looked(where, _STATUSES)}
    except StoreError as error:
        return [Disagreement(FILE, "a file that can be read", str(error))]
    found: list[Disagreement] = []
    try:
        known = cycles_in(where).look().state.cycle_number
    except StoreError as error:
        found.append(Disagreement(CYCLES, "cycles that can be read", str(error)))
        known = number
    if through > last:
        return [*found, Disagreement(FOLLOWED, f"at most {last}", str(through))]
    if known < number:
        found.append(Disagreement(CYCLES, f"at least cycle {number}", f"cycle {known}"))
    first = ledger.execute(SQL["get_kv"], {"key": _FIRST}).fetchone()
    told = _statuses(ledger, where.name, int(first["value"]) if first else 0, through)
    for item, status in told.items():
        if (stands := here.get(item, "it is not there")) != status:
            found.append(Disagreement(item, status, stands))
    return found


def mend(where: Path, wrong: list[Disagreement]) -> list[Disagreement]:
    """Put right what a home has otherwise than the ledger; gives what that was.

    What has to begin anew is left to the next sprint.
    """
    errands = [one for one in wrong if one.target not in _ANEW]
    if errands:
        with AgentHome(where) as home, home.db.transaction("mend") as connection:
            for one in errands:
                errand = copied(one.target, where.name)
                put(connection, errand, one.expected, QUEUE.now_ms(connection), _PUT_RIGHT)
    return errands


def _agents_of(row: sqlite3.Row) -> set[str]:
    """Whom a line of the ledger's diary concerns."""
    if row["type"] == RESTORED:
        return set(json.loads(row["payload"]).get("cycles", {}))
    return {agent_of_item(row["item"])} - {""}


def _followed(where: Path) -> tuple[int, int]:
    """How far a home has followed, and the number of its last cycle then; 0: not at all."""
    rows = _looked(where, "SELECT through, cycle FROM caloron_followed")
    return next(((int(row["through"]), int(row["cycle"])) for row in rows), (0, 0))


def kept_aside(file: Path, why: str) -> Path:
    """Rename a file, with the log beside it: the last changes of a database stand there alone."""
    kept = file.with_name(f"{file.name}.{why}-{time.time_ns()}")
    file.rename(kept)
    log = file.with_name(f"{file.name}-wal")
    with suppress(FileNotFoundError):
        if log.stat().st_size:
            log.rename(kept.with_name(f"{kept.name}-wal"))
    for beside in ("-wal", "-shm"):
        file.with_name(f"{file.name}{beside}").unlink(missing_ok=True)
    return kept


def _own(agent: str) -> dict[str, Any]:
    """The values that find the items of an agent."""
    role = next((role for role, name in SHARED_AGENTS.items() if name == agent), None)
    return {"agent": agent, "role": role}


def _statuses(ledger: sqlite3.Connection, agent: str, first: int, through: int) -> dict[str, str]:
    """How the errands of an agent stand by the ledger's diary, up to one of its lines."""
    values = _own(agent) | {"first": first, "through": through}
    return {
        row["item"]: status_after(row["type"], json.loads(row["payload"])) or "pending"
        for row in ledger.execute(_LAST_MOVES, values)
        if agent_of_item(row["item"]) == agent
    }


def _busy_at(ledger: sqlite3.Connection, agent: str, first: int, line: int) -> set[str]:
    """The items that an agent was working on after a line of the ledger's diary."""
    told = _statuses(ledger, agent, first, line) if line > first else {}
    return {item for item, status in told.items() if status == "in_flight"}


def _looked(where: Path, query: str) -> Iterator[sqlite3.Row]:
    """Rows of a home's file, without changing it; none if it is not there or has no such table."""
    file = where / FILE
    if not file.exists():
        return
    with closing(open_read_only(file)) as connection:
        try:
            yield from connection.execute(query)
        except sqlite3.Error as error:
            if "no such table" not in str(error):
                raise store_error(file, error) from error
