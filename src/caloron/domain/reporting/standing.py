"""Facts that a row of a sprint or a task shows by itself: outcome, duration, verification.

Standard library only, because `caloron status` has to start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caloron.domain.model.sprint import Sprint
    from caloron.domain.model.task import Task

#: The outcome of a sprint whose engine was killed while its agents still run.
WITHOUT_ENGINE = "without an engine"


def sprint_time_s(sprint: Sprint, now: float) -> float:
    """Return the time from the beginning of a sprint to its end, or to `now`."""
    return seconds_between(sprint.settings.created_at, sprint.ended_at, now)


def seconds_between(began: float, ended: float | None, now: float) -> float:
    return round(max(0.0, (now if ended is None else ended) - began), 1)


def unfinished_outcome(phase: str, *, running: bool, orphans: bool) -> str:
    """Return the phase of a sprint that has not ended; without an engine it is stopped."""
    if running:
        return phase
    return WITHOUT_ENGINE if orphans else "stopped"


def verification_of(task: Task) -> str:
    """Return the result of the last verification of the merged change, in words of a report."""
    verified = task.merge.verified
    if verified is None:
        return ""
    if not verified.ok:
        return "red, allowed" if verified.tolerated else "red"
    # Without a log there was nothing to run.
    return "green" if verified.log else "not verified"
