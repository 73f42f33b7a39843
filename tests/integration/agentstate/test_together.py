"""Many programs at once: ours beside one that knows no leases, and wakes that come together."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from caloron.agentstate.instance import AgentInstance
from caloron.cycles import Cycles
from caloron.errors import InUse
from tests.integration.agentstate.conftest import foreign
from tests.integration.agentstate.cycles.conftest import Agent
from tests.support.claimers import PROCESSES, fill

ITEMS = 120


def _ours(result: tuple[Path, str]) -> list[str]:
    """Claims with a lease, looks that nobody interferes, and ends with the token."""
    where, name = result
    mine = []
    with AgentInstance(where) as home:
        while (held := home.work_items.claim_next(name)) is not None:
            home.work_items.annotate(held.item.id, {"by": name})
            assert home.work_items.get(held.item.id).owner_agent == name
            done = home.work_items.resolve(held.item.id, "done", token=held.lease.token)
            assert done.owner_agent == name
            mine.append(held.item.id)
    return mine


def _theirs(result: tuple[Path, str]) -> list[str]:
    """Reads what waits, and later takes it without looking again."""
    where, name = result
    db = foreign(where)
    mine: list[str] = []
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        try:
            seen = db.execute(
                "SELECT id FROM work_items WHERE status = 'pending' ORDER BY created_at LIMIT 3"
            ).fetchall()
            if not seen:
                break
            for row in seen:
                now = int(time.time() * 1000)
                db.execute(
                    "UPDATE work_items SET status = 'in_flight', owner_agent = ?, updated_at = ?"
                    " WHERE id = ?",
                    (name, now, row["id"]),
                )
                mine.append(row["id"])
        except (sqlite3.OperationalError, sqlite3.IntegrityError):
            # Busy, or refused because somebody was faster.
            time.sleep(0.001)
    return mine


def _work(result: tuple[Path, str]) -> list[str]:
    return _theirs(result) if result[1].startswith("theirs") else _ours(result)


def test_a_program_without_leases_takes_nothing_from_those_that_have_one(tmp_path: Path) -> None:
    where = tmp_path / "agent"
    items = fill(where, ITEMS)
    names = ["ours-1", "ours-2", "ours-3", "theirs-1", "theirs-2"]
    with PROCESSES.Pool(len(names)) as pool:
        parts = pool.map(_work, [(where, name) for name in names], chunksize=1)
    ours = [item for part in parts[:3] for item in part]
    assert len(ours) == len(set(ours)), "an item of ours was done twice"
    with AgentInstance(where) as home:
        for item in items:
            row = home.work_items.get(item)
            if item in ours:
                assert row.status == "done"
                assert (row.owner_agent or "").startswith("ours")
                assert row.notes == f'{{"by":"{row.owner_agent}"}}'
            else:
                assert row.status == "in_flight"
                assert (row.owner_agent or "").startswith("theirs")
                assert home.work_items.lease(item).holder == row.owner_agent


def _wake(folder: Path) -> int:
    """One wake that comes together with others; its number, or 0 if it was refused.

    Its process lives on until all have come.
    """
    try:
        loaded, _ = Cycles(Agent(folder).places).begin()
    except InUse:
        return 0
    assert loaded.state.holder is not None
    assert loaded.state.holder["pid"] == os.getpid()
    return loaded.state.cycle_number


def test_only_one_of_several_simultaneous_wakes_begins(tmp_path: Path) -> None:
    with PROCESSES.Pool(6) as pool:
        first = pool.map(_wake, [tmp_path] * 6, chunksize=1)
    assert sorted(first) == [0, 0, 0, 0, 0, 1]
    with PROCESSES.Pool(6) as pool:
        second = pool.map(_wake, [tmp_path] * 6, chunksize=1)
    assert sorted(second) == [0, 0, 0, 0, 0, 2]
