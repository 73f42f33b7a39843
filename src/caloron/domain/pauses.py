"""Why nobody may start: the slots are taken, or a provider lets nobody work."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caloron.domain.views import SprintView, StateView, TaskView


def busy_slots(state: StateView) -> int:
    """How many agents are at work, of as many as `--parallel` allows."""
    works = [t.work for t in state.tasks.values() if t.work and t.work.role != "verify"]
    running = [work for work in works if work.item not in state.queued | state.ended]
    # After a resume with fewer slots, agents of before may still be at work.
    return min(len(running), state.sprint.parallel)


def provider_of(sprint: SprintView, task: TaskView | None) -> str:
    return (task.plan.framework if task else "") or sprint.framework


def why_paused(sprint: SprintView, task: TaskView | None, now: float = 0.0) -> str:
    """Why the provider of a task's agent lets nobody work, in one line; empty: it does."""
    name = provider_of(sprint, task)
    pause = sprint.paused.get(name)
    if pause is None or pause.until <= now:
        return ""
    return f"{name}: {pause.what} until {clock_time(pause.until)}"


def clock_time(at: float) -> str:
    """A moment for people: in the time zone of this machine, which it names."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M %Z")
