"""Many agents at once on few processors: does every lease get renewed in time?"""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

from benchmarks.measure import Measure, median
from benchmarks.sprints import Home, approves, home, implements

_AGENTS = 32
#: Short, so that each lease is renewed many times while the agents work.
_LEASE_S = 5.0
_POLL_S = 0.02
#: About a tenth of a processor each: together more than two of them.
_WORK = (
    "end=$(($(date +%s) + 20)); while [ $(date +%s) -lt $end ]; do"
    " head -c 4M /dev/zero | sha256sum > /dev/null; sleep 0.2; done"
)


class _Leases:
    """Records when each lease was renewed, by frequent polls of the ledger."""

    def __init__(self) -> None:
        self._expiry: dict[tuple[str, int], int] = {}
        self.gaps_s: list[float] = []
        self.at_work = 0

    def record(self, bench_home: Home) -> None:
        sql = (
            "SELECT item, token, expires_at FROM leases JOIN work_items ON id = item"
            " WHERE status = 'in_flight' AND result IS NULL"
        )
        with bench_home.reading() as connection:
            rows = connection.execute(sql).fetchall()
        self.at_work = max(self.at_work, len(rows))
        for item, token, expiry in rows:
            before = self._expiry.get((item, token))
            if before is not None and expiry != before:
                # Each renewal lets the lease last as long from then on.
                self.gaps_s.append((expiry - before) / 1000)
            self._expiry[item, token] = expiry

    def watch(self, bench_home: Home, process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            if bench_home.has_ledger():
                self.record(bench_home)
            time.sleep(_POLL_S)


def run() -> list[Measure]:
    names = [f"t{n}" for n in range(_AGENTS)]
    leases = _Leases()
    with home() as bench_home:
        bench_home.run("config", "set", "lease_s", str(_LEASE_S))
        responses: list[dict[str, Any]] = [implements(n) | {"run": _WORK} for n in names]
        bench_home.write({n: [] for n in names}, [*responses, approves()])
        process = bench_home.sprint(parallel=_AGENTS)
        leases.watch(bench_home, process)
        events = bench_home.finish(process)
    reasons = [e.payload["reason"] for e in events if e.type == "work_item_reopened"]
    lost = [reason for reason in reasons if "lease" in reason or "interrupted" in reason]
    share = [gap / _LEASE_S for gap in leases.gaps_s]
    return [
        Measure(
            f"leases lost with {_AGENTS} busy agents",
            len(lost),
            "leases",
            0,
            note=f"{leases.at_work} at work at once on {os.cpu_count()} processors,"
            f" {len(share)} renewals of leases of {_LEASE_S:.0f} s"
            + "".join(f"; begun again: {reason}" for reason in reasons),
        ),
        Measure(
            "longest time between two renewals",
            max(share),
            "of lease",
            1,
            note=f"usually {median(share):.2f}; a third is meant",
        ),
    ]
