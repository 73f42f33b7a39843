"""How a sprint compares with those before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from caloron.domain.retro import Kpis
from caloron.durations import span

#: A change of at most this share is no change.
DEAD_BAND = 0.05
_EARLIER = 10


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """A number beside the mean of earlier sprints."""

    metric: str
    now: float
    before: float
    #: How many earlier sprints have the number.
    n: int
    direction: Literal["improved", "degraded", "stable"]


_METRICS: tuple[tuple[str, Callable[[Kpis], float | None], bool], ...] = (
    ("completion_rate", lambda k: k.completion_rate, True),
    ("clean_task_pct", lambda k: k.clean_task_pct, True),
    ("avg_clarity", lambda k: k.avg_clarity, True),
    ("avg_review_cycles", lambda k: k.avg_review_cycles, False),
    ("avg_interventions", lambda k: k.avg_interventions, False),
    ("avg_tokens_per_task", lambda k: k.avg_tokens_per_task, False),
    ("avg_cost_per_task", lambda k: k.avg_cost_per_task, False),
    ("avg_time_per_task", lambda k: k.avg_time_per_task, False),
)


#: How people read each number: its name, and a form with its unit.
_WORDS: dict[str, tuple[str, Callable[[float], str]]] = {
    "completion_rate": ("tasks done", lambda n: f"{100 * n:.0f} %"),
    "clean_task_pct": ("tasks without the supervisor or people", lambda n: f"{n:.0f} %"),
    "avg_clarity": ("clarity", lambda n: f"{n:.1f}/10"),
    "avg_review_cycles": ("reviews per task", lambda n: f"{n:.2f}"),
    "avg_interventions": ("supervisor steps per task", lambda n: f"{n:.2f}"),
    "avg_tokens_per_task": ("tokens per task", lambda n: f"{n:.0f}"),
    "avg_cost_per_task": ("cost per task", lambda n: f"${n:.2f}"),
    "avg_time_per_task": ("time of agents per task", lambda n: span(60 * n)),
}


def label(metric: str) -> str:
    """A number's name for people."""
    return _WORDS[metric][0]


def worded(metric: str, value: float) -> str:
    """A value of a number, with its unit."""
    return _WORDS[metric][1](value)


def trends(now: Kpis, earlier: Iterable[Kpis]) -> tuple[Trend, ...]:
    """Each number beside its mean in earlier sprints that have it."""
    past = [kpis for kpis in earlier if kpis.total_tasks][-_EARLIER:]
    found = []
    for name, read, more_is_better in _METRICS:
        value = read(now) if now.total_tasks else None
        before = [known for kpis in past if (known := read(kpis)) is not None]
        if value is None or not before:
            continue
        mean = sum(before) / len(before)
        found.append(
            Trend(
                metric=name,
                now=value,
                before=round(mean, 4),
                n=len(before),
                direction=_direction(value, mean, more_is_better=more_is_better),
            )
        )
    return tuple(found)


def _direction(
    value: float, mean: float, *, more_is_better: bool
) -> Literal["improved", "degraded", "stable"]:
    if abs(value - mean) <= DEAD_BAND * abs(mean) + 1e-9:
        return "stable"
    return "improved" if (value > mean) is more_is_better else "degraded"
