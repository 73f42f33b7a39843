"""Records of ended sprints in `sprints.json`: our own written, an older Caloron's read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from caloron.domain.model.sprint import State
from caloron.domain.model.status import exit_code_for
from caloron.domain.reporting.kpis import Kpis, Run, blockers_of, compute_kpis, tools_of
from caloron.domain.reporting.learnings import Kept, SprintRecord

if TYPE_CHECKING:
    from caloron.domain.compat.legacy_sprints import Record


def history_record(state: State, runs: Sequence[Run]) -> Record:
    """Return the results of a sprint, without numbers that are not known."""
    sprint = state.sprint
    ended = sprint.ended_at or sprint.settings.created_at
    kpis = compute_kpis(state, runs, ended)
    record: dict[str, Any] = {
        "sprint_id": sprint.number,
        "id": sprint.id,
        "completed_at": datetime.fromtimestamp(ended, UTC).isoformat(),
        "goal": sprint.goal,
        "exit_code": exit_code_for(
            stopped=sprint.planning.failure, done=kpis.completed_tasks, total=kpis.total_tasks
        ),
        "duration_s": kpis.sprint_time_s,
        "total_tasks": kpis.total_tasks,
        "completed_tasks": kpis.completed_tasks,
        "failed_tasks": kpis.total_tasks - kpis.completed_tasks,
        "supervisor_events": kpis.total_interventions,
        "sprint_time_s": kpis.sprint_time_s,
        "blockers": list(blockers_of(state)),
        "tools_used": list(tools_of(state, runs)),
        "cost_usd": kpis.cost_usd,
        "stopped": sprint.planning.failure,
    }
    if kpis.avg_clarity is not None:
        record["avg_clarity"] = kpis.avg_clarity
    return record


def remembered(id: str, record: Record) -> SprintRecord:
    """Return a sprint of an older Caloron as the next ones use it."""
    from caloron.domain.compat.legacy_sprints import summary_of

    facts = summary_of(record)
    failed = f"it ended with exit code {facts.exit_code}" if facts.exit_code else ""
    return SprintRecord(
        id=id,
        goal=facts.goal,
        kpis=Kpis(
            total_tasks=facts.total,
            completed_tasks=facts.completed,
            completion_rate=round(facts.completed / facts.total, 3) if facts.total else 0.0,
            failure_count=facts.failed,
            clarity_count=facts.total if facts.clarity is not None else 0,
            avg_clarity=facts.clarity,
            total_interventions=facts.interventions,
            sprint_time_s=facts.duration_s,
        ),
        blockers=facts.blockers,
        stopped=failed,
    )


def with_adopted(kept: Kept, adopted: Iterable[SprintRecord]) -> Kept:
    """Add the sprints of an older Caloron, each once, though two of its files list them.

    Its learnings have no ids, so the same sprint is recognised by its numbers.
    """
    history = list(adopted)
    ids = {record.id for record in history}
    known = Counter(_numbers(record) for record in history)
    others = []
    for record in kept.sprints:
        if record.id in ids:
            continue
        if known[_numbers(record)] > 0:
            known[_numbers(record)] -= 1
            continue
        others.append(record)
    return msgspec.structs.replace(kept, sprints=(*others, *history))


def _numbers(record: SprintRecord) -> tuple[Any, ...]:
    kpis = record.kpis
    return (
        kpis.total_tasks,
        kpis.completed_tasks,
        kpis.failure_count,
        kpis.avg_clarity,
        kpis.total_interventions,
        record.blockers,
    )
