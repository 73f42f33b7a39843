"""Guards the budget: each run reserves an amount before it starts, and returns the rest."""

from __future__ import annotations

import threading

from caloron.domain.model.usage import allowance

Run = tuple[str, int]


class BudgetGuard:
    """The budget of a sprint, as the engine that runs it knows it.

    `spent` counts a run as soon as it has ended, also before the tick has taken that in.
    """

    def __init__(self, budget: float, spent: float, run_cap: float) -> None:
        self.budget = budget
        self.spent = spent
        #: True if some agent of this sprint reports its cost.
        self.is_metered = spent > 0
        self._run_cap = run_cap
        self._reserved: dict[Run, float] = {}
        self._lock = threading.Lock()

    def allowance(self) -> float | None:
        """Return the amount that the next run may spend; 0: none may start; None: no limit."""
        if not self.is_metered:
            return None
        with self._lock:
            reserved = sum(self._reserved.values())
            return allowance(self.budget, self.spent, reserved, self._run_cap)

    def reserve(self, run: Run, amount: float | None) -> None:
        if amount:
            with self._lock:
                self._reserved[run] = amount

    def reserved(self, run: Run) -> float | None:
        with self._lock:
            return self._reserved.get(run)

    def settle(self, run: Run, cost: float) -> None:
        """A run has ended and cost this much."""
        with self._lock:
            self._reserved.pop(run, None)
            self.spent += cost
            self.is_metered = self.is_metered or cost > 0

    def release(self, run: Run) -> None:
        with self._lock:
            self._reserved.pop(run, None)

    @property
    def is_exhausted(self) -> bool:
        """True if no run can start and no running one could return part of its amount."""
        with self._lock:
            at_work = bool(self._reserved)
        return not at_work and self.allowance() == 0

    def __str__(self) -> str:
        return f"the budget of ${self.budget:.2f} is used up (${self.spent:.2f} spent)"
