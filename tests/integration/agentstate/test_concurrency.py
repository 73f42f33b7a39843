"""Concurrent programs: Caloron beside a program without leases, and simultaneous wakes."""

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


def _claim_with_leases(result: tuple[Path, str]) -> list[str]:
    """Claim with a lease, check that no other program interferes, and end with the token."""
    where, name = result
    claimed_items = []
    with AgentInstance(where) as home:
        while (claimed := home.work_items.claim_next(name)) is not None:
            home.work_items.annotate(claimed.item.id, {"by": name})
            assert home.work_items.get(claimed.item.id).owner_agent == name
            done = home.work_items.resolve(claimed.item.id, "done", token=claimed.lease.token)
            assert done.owner_agent == name
            claimed_items.append(claimed.item.id)
    return claimed_items


def _claim_without_leases(result: tuple[Path, str]) -> list[str]:
    """Read the waiting items, and claim them later without another check."""
    where, name = result
    db = foreign(where)
    claimed_items: list[str] = []
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        try:
            rows = db.execute(
                "SELECT id FROM work_items WHERE status = 'pending' ORDER BY created_at LIMIT 3"
            ).fetchall()
            if not rows:
                break
            for row in rows:
                now = int(time.time() * 1000)
                db.execute(
                    "UPDATE work_items SET status = 'in_flight', owner_agent = ?, updated_at = ?"
                    " WHERE id = ?",
                    (name, now, row["id"]),
                )
                claimed_items.append(row["id"])
        except (sqlite3.OperationalError, sqlite3.IntegrityError):
            # The file is busy, or another program claimed the item first.
            time.sleep(0.001)
    return claimed_items


def _work(result: tuple[Path, str]) -> list[str]:
    return (
        _claim_without_leases(result)
        if result[1].startswith("theirs")
        else _claim_with_leases(result)
    )


def test_a_program_without_leases_claims_no_leased_item(tmp_path: Path) -> None:
    where = tmp_path / "agent"
    items = fill(where, ITEMS)
    names = ["ours-1", "ours-2", "ours-3", "theirs-1", "theirs-2"]
    with PROCESSES.Pool(len(names)) as pool:
        parts = pool.map(_work, [(where, name) for name in names], chunksize=1)
    claimed_by_caloron = [item for part in parts[:3] for item in part]
    assert len(claimed_by_caloron) == len(set(claimed_by_caloron)), "an item of ours was done twice"
    with AgentInstance(where) as home:
        for item in items:
            row = home.work_items.get(item)
            if item in claimed_by_caloron:
                assert row.status == "done"
                assert (row.owner_agent or "").startswith("ours")
                assert row.notes == f'{{"by":"{row.owner_agent}"}}'
            else:
                assert row.status == "in_flight"
                assert (row.owner_agent or "").startswith("theirs")
                assert home.work_items.lease(item).holder == row.owner_agent


def _wake(folder: Path) -> int:
    """Begin a wake at the same time as others, and return its number, or 0 if it was refused.

    The process lives until all wakes have begun.
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
