"""`caloron history`: the sprints of a project, newest first."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta
from typing import Any

import click

from caloron.cli import output
from caloron.cli.app import Answer, command
from caloron.cli.format import one_line, utc
from caloron.cli.project_view import WITHOUT_ENGINE, display_phase, imported_sprint, orphaned_agents
from caloron.cli.render import cropped, screen_width
from caloron.durations import span
from caloron.ledger import reading
from caloron.ledger.legacy import LegacySprint, legacy_sprints
from caloron.ledger.locate import find_project
from caloron.store.lock import holder


@command(project=True)
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(1, 10**9),
    metavar="N",
    default=20,
    show_default=True,
    help="Maximum number of sprints.",
)
def history(limit: int, project: str | None) -> Answer:
    """List the sprints of the project, newest first.

    Example:
      caloron history --limit 5
    """
    paths = find_project(project)
    rows: list[dict[str, Any]] = []
    total, running = 0, (holder(paths.engine_lock) or {}).get("sprint", "")
    with reading.ledger_if_any(paths) as connection:
        if connection is not None:
            total = reading.value(connection, "sprint_count")
            orphaned = {agent["sprint_id"] for agent in orphaned_agents(paths, connection)}
            for row in reading.rows(connection, "history", limit=limit):
                is_running, has_orphans = row["id"] == running, row["id"] in orphaned
                phase = display_phase(row["phase"], running=is_running, orphans=has_orphans)
                rows.append(_record(row, phase))
        earlier = legacy_sprints(paths, connection, limit)
    if earlier.problem:
        output.note(f"warning: {earlier.problem}")
    if earlier.sprints:
        rows += map(_imported, earlier.sprints)
        rows = sorted(rows, key=lambda row: -row["number"])[:limit]
        total += earlier.total
    data = {"project": paths.name, "total": total, "sprints": rows}
    return Answer(data, lambda: [line for row in rows for line in _text(row)] or "No sprint yet.")


def _record(row: sqlite3.Row, phase: str) -> dict[str, Any]:
    """A row of the output; a sprint has an exit code only once it has ended."""
    from caloron.domain.model.status import exit_code_for

    ended, outcome, code, reason = row["ended_at"], phase, None, ""
    if row["phase"] == "ended":
        reason = row["stopped"] or ""
        code = exit_code_for(stopped=reason, done=row["done"], total=row["total"])
        outcome = "discarded" if row["discarded"] else "failed" if code else "ended"
    return {
        "sprint_id": row["id"],
        "number": row["number"],
        "goal": row["goal"],
        "phase": row["phase"],
        "completed_tasks": row["done"],
        "total_tasks": row["total"],
        "started_at": utc(row["created_at"]),
        "duration_s": round(ended - row["created_at"], 1) if ended else None,
        "adopted": False,
        "outcome": outcome,
        "exit_code": code,
        "reason": reason,
    }


def _imported(sprint: LegacySprint) -> dict[str, Any]:
    """A sprint imported from an older version, which recorded only when it ended."""
    data, summary = imported_sprint(sprint)
    outcome = "failed" if summary.exit_code else "ended"
    return data | {
        "phase": outcome,
        "started_at": _began(summary.completed_at, summary.duration_s),
        "duration_s": summary.duration_s,
        "outcome": outcome,
        "exit_code": summary.exit_code,
        "reason": "",
    }


def _began(completed_at: str, duration_s: float) -> str | None:
    try:
        ended = datetime.fromisoformat(completed_at)
        return (ended - timedelta(seconds=duration_s)).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        return None


def _text(row: dict[str, Any]) -> list[str]:
    took = "" if row["duration_s"] is None else f", {span(row['duration_s'])}"
    goal = _cut(row["goal"])
    done = f"#{row['number']} {row['completed_tasks']}/{row['total_tasks']} tasks"
    lines = [
        f"{done}, {_outcome_text(row)}{took}{' (imported)' if row['adopted'] else ''}",
        f"   {goal}",
    ]
    if row["reason"]:
        lines.append(f"   {_cut(row['reason'])}")
    return lines


def _cut(text: str) -> str:
    """One line; on a terminal no longer than the screen, with an ellipsis where it was cut."""
    line = one_line(text)
    return cropped(line, screen_width() - 3).rstrip() if output.is_terminal() else line


def _outcome_text(row: dict[str, Any]) -> str:
    if row["outcome"] == "failed":
        return f"failed (exit code {row['exit_code']})"
    if row["outcome"] in ("stopped", WITHOUT_ENGINE):
        return f"{row['outcome']} (continue: caloron resume {row['sprint_id']})"
    return str(row["outcome"])
