"""What the rows of a sprint show by themselves: its outcome, and why no agent starts.

Standard library only, because `caloron status` has to start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from caloron.domain.model.sprint import Sprint, State
    from caloron.domain.model.task import Task


def busy_slots(state: State) -> int:
    """Count the agents at work, at most as many as `--parallel` allows."""
    works = [t.work for t in state.tasks.values() if t.work and t.work.role != "verify"]
    running = [work for work in works if work.item not in state.queued | state.ended]
    # After a resume with fewer slots, more agents may still be at work.
    return min(len(running), state.sprint.settings.parallel)


def provider_of(sprint: Sprint, task: Task | None) -> str:
    return (task.plan.framework if task else "") or sprint.settings.framework


def why_paused(sprint: Sprint, task: Task | None, now: float = 0.0) -> str:
    """Return until when the provider of a task's agent is unavailable, in one line, or empty."""
    name = provider_of(sprint, task)
    pause = sprint.availability.providers.get(name)
    if pause is None or pause.until <= now:
        return ""
    return f"{name}: {pause.what} until {clock_time(pause.until)}"


def clock_time(at: float) -> str:
    """Return a time for people, in the time zone of this machine, with its name."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M %Z")


_LONGEST = 200


class Outage(NamedTuple):
    """An unavailable forge; times are in seconds since 1970."""

    since: float
    until: float | None
    detail: str

    def __str__(self) -> str:
        if self.until is not None:
            return f"forge quota until {_time(self.until, self.since)}"
        return f"forge does not answer since {_time(self.since, self.since)} ({self.detail})"


def outage_after(before: Outage | None, detail: str, until: float | None, now: float) -> Outage:
    """Return the outage after another failed poll: it began with the first one."""
    detail = " ".join(detail.split())[:_LONGEST]
    if before is None or (before.until is None) != (until is None):
        return Outage(now, until, detail)
    return Outage(before.since, until, before.detail if until is None else detail)


def _time(at: float, near: float) -> str:
    """Return the time of day, with the day if it is another."""
    day, _, time = clock_time(at).partition(" ")
    return time if clock_time(near).startswith(day) else f"{day} {time}"


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
