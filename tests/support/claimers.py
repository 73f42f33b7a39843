"""Processes that claim from one agent's file, all at once, until nothing is left."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from pathlib import Path

from caloron.agentstate.instance import AgentInstance

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.support.claimers"])


def fill(where: Path, items: int) -> list[str]:
    names = [f"item-{n}" for n in range(items)]
    with AgentInstance(where) as home, home.db.transaction("fill") as connection:
        connection.executemany(
            "INSERT INTO work_items VALUES (?, 'review', '{}', 'pending', NULL, ?, ?, NULL)",
            [(name, n, n) for n, name in enumerate(names)],
        )
    return names


def _claim_until_empty(job: tuple[Path, str]) -> list[tuple[str, int]]:
    where, owner = job
    mine: list[tuple[str, int]] = []
    with AgentInstance(where) as home:
        while (claimed := home.work_items.claim_next(owner)) is not None:
            home.work_items.resolve(claimed.item.id, "done", token=claimed.lease.token)
            mine.append((claimed.item.id, claimed.lease.token))
    return mine


def claimed_by_all(where: Path, processes: int) -> Counter[tuple[str, int]]:
    """Count the claims that so many real processes get."""
    jobs = [(where, f"worker-{n}") for n in range(processes)]
    with PROCESSES.Pool(processes) as pool:
        parts = pool.map(_claim_until_empty, jobs, chunksize=1)
    return Counter(claim for part in parts for claim in part)
