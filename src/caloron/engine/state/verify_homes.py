"""Compares the homes of agents with the ledger, and puts right what it tells of them.

A home that is not there, or is behind, is right: it comes back, or catches up, with its agent.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from caloron.agentstate.cycles.files import CycleFiles
from caloron.agentstate.dashboard import regenerate, wrong_in
from caloron.agentstate.scaffold import scaffold
from caloron.domain.identities import agent_of_item
from caloron.engine.agent_homes import (
    CYCLES,
    FOLLOWED,
    AgentHomes,
    Disagreement,
    disagreements,
    kept_aside,
    mend,
)
from caloron.engine.home_view import cycles_in
from caloron.engine.state.finding import Finding, Looked, Mend
from caloron.engine.state.homes import STATE, home_damages, homes_in
from caloron.errors import CaloronError
from caloron.ledger.ledger import Ledger
from caloron.store.database import open_read_only
from caloron.store.files import read_plain

_NEWEST = "SELECT id FROM sprints ORDER BY number DESC LIMIT 1"


class HomesCheck:
    """One look at the homes of a project."""

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self._folder, self._ledger = folder, ledger

    def look(self, looked: Looked) -> None:
        for home in homes_in(self._folder):
            looked.checked += 1
            if self._look_at_file(looked, home):
                self._look_at_errands(looked, home)
                self._look_at_dashboard(looked, home)
            self._look_at_cycles(looked, home)

    def _look_at_file(self, looked: Looked, home: Path) -> bool:
        """Whether there is a file that can be looked into."""
        file = home / STATE
        if not file.exists():
            if self._is_known(home.name):
                finding = _home(file, "queue and diary", "it is not there", "make it anew")
                looked.add(finding, lambda: self._anew(home))
            return False
        damage = _damage(file)
        if damage:
            aside = f"keep it beside as {STATE}.corrupt-…, and make it anew from the ledger"
            looked.add(_home(file, "a sound file", damage, aside), lambda: self._anew(home))
        return not damage

    def _is_known(self, agent: str) -> bool:
        rows = self._ledger.db.rows("SELECT id FROM work_items")
        return any(agent_of_item(row["id"]) == agent for row in rows)

    def _anew(self, home: Path) -> str:
        """Make the file of a home from the ledger; whatever else lies in the home stays."""
        file, line = home / STATE, f"{home / STATE} is made anew"
        if file.exists():
            line += f"; what stood there is kept as {kept_aside(file, 'corrupt')}"
        self._follow()
        # The home of somebody whom the ledger does not know begins empty.
        scaffold(home, "caloron", home.name)
        return line

    def _follow(self) -> None:
        """What the next sprint would do first."""
        row = self._ledger.db.row(_NEWEST)
        AgentHomes(self._folder, self._ledger, row["id"] if row else "").catch_up()

    def _numbered(self, home: Path, one: Disagreement) -> str:
        self._follow()
        return f"the cycles of {home.name} go on from {one.expected}"

    def _look_at_errands(self, looked: Looked, home: Path) -> None:
        with self._ledger.db.snapshot() as connection:
            found = disagreements(home, connection)
        for one in found:
            target = f"{home / STATE}, {one.target}"
            if one.target == FOLLOWED:
                told = "another ledger told it: the next sprint begins it anew"
                looked.add(_home(home / STATE, one.expected, told, passing=True))
                continue
            if one.target == CYCLES:
                self._look_at_number(looked, home, one)
                continue
            finding = _home(target, one.expected, one.found, "let it stand as the ledger has it")
            looked.add(finding, lambda one=one: _mended(home, one))  # type: ignore[misc]

    def _look_at_number(self, looked: Looked, home: Path, one: Disagreement) -> None:
        """A number that was lost; cycles that nobody can read are told where they lie."""
        try:
            cycles_in(home).look()
        except CaloronError:
            # Cycles that cannot be read are a finding of their own.
            return
        finding = _home(home / CYCLES, one.expected, one.found, "go on from that number")
        looked.add(finding, lambda: self._numbered(home, one))

    def _look_at_dashboard(self, looked: Looked, home: Path) -> None:
        page = home / "dashboard.md"
        wrong = _wrong_page(home, page)
        if wrong.startswith("older"):
            looked.add(_home(page, "how its agent stands", wrong, passing=True))
        elif wrong:
            finding = _home(page, "the page that its queue makes", wrong, "write it anew")
            looked.add(finding, lambda: f"{regenerate(home).absolute()} is written anew")

    def _look_at_cycles(self, looked: Looked, home: Path) -> None:
        places = cycles_in(home).places
        try:
            seen = cycles_in(home).look()
        except CaloronError as error:
            looked.add(_home(places.state, "cycles that can be read", str(error)))
            return
        if seen.aside is not None:
            repair = f"keep it beside as {seen.aside.name}, and make it anew from {places.log.name}"
            found = "; ".join(seen.notices) or "it cannot be used"
            looked.add(_home(places.state, "the state of its cycles", found, repair), _cycles(home))


def _damage(file: Path) -> str:
    try:
        with closing(open_read_only(file)) as connection:
            damage = next(home_damages(connection), None)
    except (CaloronError, sqlite3.Error) as error:
        return str(error)
    return f"{damage.what}: {damage.found}" if damage else ""


def _mended(home: Path, one: Disagreement) -> str:
    mend(home, [one])
    return f"{one.target} of {home.name} is {one.expected} again, not {one.found}"


def _cycles(home: Path) -> Mend:
    def act() -> str:
        cycles = cycles_in(home)
        files = CycleFiles(cycles.places, cycles.log, lambda: datetime.now(UTC))
        with files.turn() as looked:
            return "; ".join(looked.notices) or f"{cycles.places.state} is in order again"

    return act


def _wrong_page(home: Path, page: Path) -> str:
    """What is wrong with a dashboard; empty: nothing. One that was never made is right."""
    try:
        text = read_plain(page)
    except FileNotFoundError:
        return ""
    except CaloronError as error:
        return str(error)
    with closing(open_read_only(home / STATE)) as connection:
        return wrong_in(connection, text)


def _home(
    target: Path | str, expected: str, found: str, repair: str = "", *, passing: bool = False
) -> Finding:
    return Finding(
        kind="home", target=str(target), expected=expected, found=found, repair=repair,
        passing=passing,
    )  # fmt: skip
