"""Why nobody may start: the slots are taken, or a provider lets nobody work."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caloron.domain.views import SprintView, StateView, TaskView


def busy_slots(state: StateView) -> int:
    """How many agents are at work or queued: what `--parallel` limits."""
    return sum(1 for t in state.tasks.values() if t.work and t.work.role != "verify")


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
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
