"""Tells whether leases may look expired only because nothing ran here that could renew them.

A laptop sleeps with its lid shut, a container is paused: agents slept too, and renew first.
"""

from __future__ import annotations

import time

from caloron.ledger.ledger import Ledger
from caloron.store.lock import boot_id

_KEY = "slept"


class Grace:
    """One lease long, from the moment at which a sleep is noticed.

    Times are those since the boot, sleep included: nobody can set that clock.
    """

    def __init__(self, ledger: Ledger, lease_s: float, longest_wait_s: float) -> None:
        """`longest_wait_s`: a loop that asks is never further apart than this while it runs."""
        self._ledger = ledger
        self._lease_s = lease_s
        self._longest_wait_s = longest_wait_s
        self._boot = boot_id() or "-"
        self._asked_at = 0.0
        self._slept, self._until = self._kept()

    def is_on(self) -> bool:
        """Whether no lease is to be judged yet; to be asked in every pass of a loop."""
        now, before = _since_boot(), self._asked_at
        self._asked_at = now
        slept = now - time.clock_gettime(time.CLOCK_MONOTONIC)
        paused = bool(before) and now - before > self._lease_s + self._longest_wait_s
        if paused or slept - self._slept > self._lease_s:
            self._slept, self._until = slept, now + self._lease_s
            # The machine may have slept between two processes.
            self._ledger.put(_KEY, f"{self._boot} {slept:.1f} {self._until:.1f}")
        return now < self._until

    def _kept(self) -> tuple[float, float]:
        """How long the machine had slept when an earlier process looked, and its grace."""
        now = _since_boot()
        known = self._ledger.get(_KEY).split()
        if len(known) == 3 and known[0] == self._boot:
            until = float(known[2])
            return float(known[1]), until if until <= now + self._lease_s else 0.0
        slept = now - time.clock_gettime(time.CLOCK_MONOTONIC)
        self._ledger.put(_KEY, f"{self._boot} {slept:.1f} 0.0")
        return slept, 0.0


def _since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
