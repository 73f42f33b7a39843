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
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from caloron.agentstate.copies import put
from caloron.agentstate.file import QUEUE
from caloron.agentstate.home import AgentHome
from caloron.domain.identities import agent_of_item
from caloron.engine.home_follower import RESTORED, Follower, copied, status_after
from caloron.engine.home_view import about, cycles_in
from caloron.errors import CaloronError, StoreError
from caloron.ledger.ledger import SQL, Ledger
from caloron.store.database import open_read_only, store_error

_HOST = "caloron"
#: From where on the homes follow the diary, and how far they have.
_FIRST, _THROUGH = "agent_homes/first", "agent_homes/through"
_NEWS = f"""
SELECT id, ts, type, actor, work_item_id AS item, payload FROM events
WHERE id > ? AND (work_item_id IS NOT NULL OR type = '{RESTORED}') ORDER BY id
"""
_MOVES = _NEWS.replace(
    "ORDER BY",
    "AND type IN ('work_item_created', 'attempt_started', 'work_item_resolved',"
    f" 'work_item_reopened', '{RESTORED}') ORDER BY",
)
_STATUSES = "SELECT id, status FROM work_items"
_BEFORE = "SELECT COALESCE(min(id), 1) - 1 AS id FROM events WHERE work_item_id LIKE ? || '/%'"
_LAST = "SELECT COALESCE(max(id), 0) AS id FROM events"
_MOMENT_S = 0.3
_DAMAGED = ("not a database", "malformed")
#: How far a home followed its ledger; the target of a disagreement with another one.
FOLLOWED = "caloron_followed"
FILE = "state.sqlite"
CYCLES = "cycle.json"
_ANEW = (FOLLOWED, FILE, CYCLES)
_PUT_RIGHT = "the ledger has it so"
#: What of a home is told by the ledger.
_TOLD = (FILE, CYCLES, "cycle.log")


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
        self._looked_through = False
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
            agents = {agent for row in news for agent in _agents_of(row)}
            if not self._looked_through:
                self._looked_through = True
                agents |= self._mend()
            for agent in sorted(agents):
                with self._forgiving(agent):
                    self._follow(agent)
            if news:
                self._ledger.put(_THROUGH, str(news[-1]["id"]))

    def _mend(self) -> set[str]:
        """Put right what was changed in a home by hand; gives the agents who need a new one."""
        with self._ledger.db.snapshot() as connection:
            known = {agent for row in _moves(connection) for agent in _agents_of(row)}
            found = all_disagreements(self.folder, connection)
        for agent, wrong in found.items():
            with self._forgiving(agent):
                for one in mend(self.folder / agent, wrong):
                    said = f"{one.target} is {one.expected}, not {one.found}"
                    self._tell(f"the home of {agent} was put right: {said}")
        lost = {agent for agent, wrong in found.items() if wrong[0].target in _ANEW}
        return lost | {agent for agent in known if not (self.folder / agent / FILE).exists()}

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
            kept = kept_aside(where / FILE, "corrupt")
            self._tell(f"{error}; it is kept as {kept}, and made anew")
            self._bring_up(where, agent)

    def _bring_up(self, where: Path, agent: str) -> None:
        given = self._leave_another_ledger(where)
        with AgentHome.scaffolded(where, _HOST, agent) as home:
            # What is lost with the machine is told again by the ledger.
            home.db.rows("PRAGMA synchronous = OFF")
            follower = Follower(home, agent, given)
            since = max(follower.through, self._first())
            for row in self._ledger.db.rows(_NEWS, (since,)):
                if agent in _agents_of(row):
                    follower.take_in(row)
            follower.finish()

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
            row = self._ledger.db.row(_BEFORE, (self._sprint,))
            known = str(row["id"]) if row else "0"
            self._ledger.put(_FIRST, known)
        return int(known)


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
    return _compared({where.name: where}, ledger).get(where.name, [])


def all_disagreements(folder: Path, ledger: sqlite3.Connection) -> dict[str, list[Disagreement]]:
    """The same of every home in a folder that differs, by its agent."""
    return _compared({f.parent.name: f.parent for f in folder.glob("*/state.sqlite")}, ledger)


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


def _compared(homes: dict[str, Path], ledger: sqlite3.Connection) -> dict[str, list[Disagreement]]:
    last = int(ledger.execute(_LAST).fetchone()["id"])
    found: dict[str, list[Disagreement]] = {agent: [] for agent in homes}
    followed: dict[str, int] = {}
    here: dict[str, dict[str, str]] = {}
    for agent, where in homes.items():
        try:
            through, number = _followed(where)
            statuses = {row["id"]: row["status"] for row in _looked(where, _STATUSES)}
        except StoreError as error:
            found[agent].append(Disagreement(FILE, "a file that can be read", str(error)))
            continue
        try:
            known = cycles_in(where).look().state.cycle_number
        except StoreError as error:
            found[agent].append(Disagreement(CYCLES, "cycles that can be read", str(error)))
            known = number
        if through > last:
            found[agent].append(Disagreement(FOLLOWED, f"at most {last}", str(through)))
            continue
        if known < number:
            told = Disagreement(CYCLES, f"at least cycle {number}", f"cycle {known}")
            found[agent].append(told)
        followed[agent], here[agent] = through, statuses
    for agent, errands in _told_statuses(ledger, followed).items():
        for item, status in errands.items():
            if (stands := here[agent].get(item, "it is not there")) != status:
                found[agent].append(Disagreement(item, status, stands))
    return {agent: wrong for agent, wrong in found.items() if wrong}


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


def _moves(ledger: sqlite3.Connection) -> Iterator[sqlite3.Row]:
    """Every line since the homes began that changes how a piece of work stands."""
    first = ledger.execute(SQL["get_kv"], {"key": _FIRST}).fetchone()
    yield from ledger.execute(_MOVES, (int(first["value"]) if first else 0,))


def _told_statuses(
    ledger: sqlite3.Connection, through: dict[str, int]
) -> dict[str, dict[str, str]]:
    """How the errands of each agent stand by the ledger's diary, as far as its home followed."""
    told: dict[str, dict[str, str]] = {}
    for row in _moves(ledger):
        for agent in _agents_of(row):
            if row["id"] <= through.get(agent, 0) and row["item"]:
                status = status_after(row["type"], json.loads(row["payload"]))
                told.setdefault(agent, {})[row["item"]] = status or "pending"
    return told


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
