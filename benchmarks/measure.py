"""The result of a benchmark, and the numbers that it consists of."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Measure:
    """A line of the table: a measured value and its bound."""

    name: str
    value: float
    unit: str
    #: None: shown for comparison only.
    bound: float | None = None
    better: Literal["less", "more"] = "less"
    #: What it was compared with, and anything a reader must know to believe it.
    note: str = ""

    @property
    def met(self) -> bool:
        if self.bound is None:
            return True
        return self.value >= self.bound if self.better == "more" else self.value <= self.bound

    @property
    def ratio(self) -> float | None:
        """The used share of the bound: above 1 means not met."""
        if self.bound is None:
            return None
        if self.better == "more":
            return self.bound / self.value
        return self.value / self.bound if self.bound else None


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the others do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def alternate(rounds: int, *blocks: Callable[[], float]) -> list[list[float]]:
    """Run short blocks in turn, so that what disturbs the machine disturbs all of them alike."""
    results: list[list[float]] = [[] for _ in blocks]
    for turn in range(rounds):
        order = range(len(blocks)) if turn % 2 == 0 else reversed(range(len(blocks)))
        for index in order:
            results[index].append(blocks[index]())
    return results


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return our time for each second of theirs, from the medians of both."""
    return median(ours) / median(theirs)
