"""The shortest time that the engine's own policy allows: the same rules, and no overhead at all."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Lasts:
    """Seconds that each step of one task takes."""

    implement: float
    review: float
    #: Of the new head before its review, and again on top of main if main moved since.
    verify: float
    verify_again: float


@dataclass
class _Lane:
    """The merge queue: one change at a time is verified and merged."""

    waiting: list[str] = field(default_factory=list)
    busy: bool = False
    merges: int = 0


class Simulation:
    """A list schedule: reviews before new work, long chains first, merges one after the other."""

    def __init__(
        self,
        needs: Mapping[str, Sequence[str]],
        lasts: Mapping[str, Lasts],
        *,
        slots: int,
        merge: float,
    ) -> None:
        self._needs = needs
        self._lasts = lasts
        self._merge = merge
        self._free = slots
        self._chain = chains(needs)
        self._lane = _Lane()
        self._reviews: list[str] = []
        self._ready = [task for task, before in needs.items() if not before]
        self._merged: set[str] = set()
        #: How many merges main had when a task's head was verified.
        self._verified: dict[str, int] = {}
        self._clock = 0.0
        self._ends: list[tuple[float, int, str, str]] = []
        self._count = 0

    def run(self) -> float:
        """Seconds until everything is merged."""
        self._start_what_can()
        while self._ends:
            self._clock, _, step, task = heapq.heappop(self._ends)
            getattr(self, f"_{step}_ended")(task)
            self._start_what_can()
        assert len(self._merged) == len(self._needs)
        return self._clock

    def _begin(self, step: str, task: str, seconds: float) -> None:
        self._count += 1
        heapq.heappush(self._ends, (self._clock + seconds, self._count, step, task))

    def _start_what_can(self) -> None:
        for queue, step in ((self._reviews, "review"), (self._ready, "implement")):
            queue.sort(key=lambda task: -self._chain[task])
            while queue and self._free:
                self._free -= 1
                task = queue.pop(0)
                self._begin(step, task, getattr(self._lasts[task], step))
        lane = self._lane
        if lane.waiting and not lane.busy:
            lane.busy = True
            task = max(lane.waiting, key=lambda t: (self._is_fresh(t), self._chain[t]))
            if self._is_fresh(task):
                self._begin("merge", task, self._merge)
            else:
                self._begin("verify_again", task, self._lasts[task].verify_again)

    def _is_fresh(self, task: str) -> bool:
        return self._verified[task] == self._lane.merges

    def _implement_ended(self, task: str) -> None:
        self._free += 1
        self._verified[task] = self._lane.merges
        self._begin("verify", task, self._lasts[task].verify)

    def _verify_ended(self, task: str) -> None:
        self._reviews.append(task)

    def _review_ended(self, task: str) -> None:
        self._free += 1
        self._lane.waiting.append(task)

    def _verify_again_ended(self, task: str) -> None:
        self._verified[task] = self._lane.merges
        self._lane.busy = False

    def _merge_ended(self, task: str) -> None:
        lane = self._lane
        lane.busy = False
        lane.merges += 1
        lane.waiting.remove(task)
        self._merged.add(task)
        self._ready += [
            other
            for other, before in self._needs.items()
            if task in before and self._merged.issuperset(before)
        ]


def chains(needs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Count the tasks that must follow each task; a task comes after its dependencies."""
    lengths = dict.fromkeys(needs, 1)
    for task in reversed(list(needs)):
        for before in needs[task]:
            lengths[before] = max(lengths[before], lengths[task] + 1)
    return lengths


def critical_path(needs: Mapping[str, Sequence[str]], lasts: Mapping[str, Lasts]) -> float:
    """The longest chain of work, with as many slots as anybody wants."""
    ends: dict[str, float] = {}
    for task, before in needs.items():
        own = lasts[task]
        begins = max((ends[other] for other in before), default=0.0)
        ends[task] = begins + own.implement + own.verify + own.review
    return max(ends.values())
