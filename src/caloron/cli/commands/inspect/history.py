"""`caloron history`: the sprints of a project, newest first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from caloron.cli.app import Answer, options
from caloron.cli.format import one_line, printable
from caloron.cli.output import is_terminal
from caloron.cli.project_view import WITHOUT_ENGINE, display_phase, orphaned_agents
from caloron.cli.render import cropped, fitted, screen_width
from caloron.durations import span
from caloron.ledger.legacy import LegacySprint, legacy_sprints
from caloron.ledger.locate import find_project
from caloron.ledger.reading import open_ledger
from caloron.store.lock import holder

_SQL = """
SELECT s.id, s.number, s.goal, s.phase, s.created_at, s.ended_at,
       json_extract(CAST(s.data AS TEXT), '$.planning.failure') AS stopped,
       json_extract(CAST(s.data AS TEXT), '$.discard.by') AS discarded,
       (SELECT count(*) FROM tasks t WHERE t.sprint = s.id) AS total,
       (SELECT count(*) FROM tasks t WHERE t.sprint = s.id AND t.status = 'Done') AS done
FROM sprints s ORDER BY s.number DESC LIMIT ?
"""


@click.command()
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(1, 10**9),
    metavar="N",
    default=20,
    show_default=True,
    help="Maximum number of sprints.",
)
@options(project=True)
def history(limit: int, project: str | None) -> Answer:
    """List the sprints of the project, newest first.

    \b
    Example:
      caloron history --limit 5
    """
    paths = find_project(project)
    total, rows = 0, []
    running = (holder(paths.engine_lock) or {}).get("sprint", "")
    connection = open_ledger(paths.ledger) if paths.ledger.exists() else None
    try:
        if connection is not None:
            total = connection.execute("SELECT count(*) FROM sprints").fetchone()[0]
            known = connection.execute(_SQL, (limit,))
            orphaned = {agent["sprint_id"] for agent in orphaned_agents(paths, connection)}
            rows = [
                _record(dict(row), display_phase(row["phase"], running=row["id"] == running,
                                            orphans=row["id"] in orphaned))
                for row in known
            ]  # fmt: skip
        earlier = legacy_sprints(paths, connection, limit)
    finally:
        if connection is not None:
            connection.close()
    if earlier.problem:
        click.echo(f"warning: {printable(earlier.problem)}", err=True)
    if earlier.sprints:
        rows += map(_imported, earlier.sprints)
        rows = sorted(rows, key=lambda row: -row["number"])[:limit]
        total += earlier.total
    text = fitted("\n".join(_text(row) for row in rows)) or "No sprint yet."
    return Answer({"project": paths.name, "total": total, "sprints": rows}, text)


def _record(row: dict[str, Any], phase: str) -> dict[str, Any]:
    ended = row["ended_at"]
    return {
        "sprint_id": row["id"],
        "number": row["number"],
        "goal": row["goal"],
        "phase": row["phase"],
        "completed_tasks": row["done"],
        "total_tasks": row["total"],
        "started_at": datetime.fromtimestamp(row["created_at"], UTC).isoformat(timespec="seconds"),
        "duration_s": round(ended - row["created_at"], 1) if ended else None,
        "adopted": False,
    } | _outcome(row, phase)


def _outcome(row: dict[str, Any], phase: str) -> dict[str, Any]:
    """The outcome of a sprint; it has an exit code only once it has ended."""
    from caloron.domain.model.status import exit_code_for

    reason = row["stopped"] or ""
    if row["phase"] != "ended":
        return {"outcome": phase, "exit_code": None, "reason": ""}
    code = exit_code_for(stopped=reason, done=row["done"], total=row["total"])
    outcome = "discarded" if row["discarded"] else "failed" if code else "ended"
    return {"outcome": outcome, "exit_code": code, "reason": reason}


def _imported(sprint: LegacySprint) -> dict[str, Any]:
    """A sprint imported from an older version, which recorded only when it ended."""
    from caloron.domain.compat.legacy_sprints import summary_of

    facts = summary_of(sprint.record)
    return {
        "sprint_id": sprint.id,
        "number": sprint.number,
        "goal": facts.goal,
        "phase": "failed" if facts.exit_code else "ended",
        "completed_tasks": facts.completed,
        "total_tasks": facts.total,
        "started_at": _began(facts.completed_at, facts.duration_s),
        "duration_s": facts.duration_s,
        "adopted": True,
        "outcome": "failed" if facts.exit_code else "ended",
        "exit_code": facts.exit_code,
        "reason": "",
    }


def _began(completed_at: str, duration_s: float) -> str | None:
    try:
        ended = datetime.fromisoformat(completed_at)
        return (ended - timedelta(seconds=duration_s)).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        return None


def _text(row: dict[str, Any]) -> str:
    took = "" if row["duration_s"] is None else f", {span(row['duration_s'])}"
    goal = _cut(row["goal"])
    done = f"#{row['number']} {row['completed_tasks']}/{row['total_tasks']} tasks"
    lines = [
        f"{done}, {_outcome_text(row)}{took}{' (imported)' if row['adopted'] else ''}",
        f"   {goal}",
    ]
    if row["reason"]:
        lines.append(f"   {_cut(row['reason'])}")
    return "\n".join(lines)


def _cut(text: str) -> str:
    """One line; on a terminal no longer than the screen, with an ellipsis where it was cut."""
    line = one_line(text)
    return cropped(line, screen_width() - 3).rstrip() if is_terminal() else line


def _outcome_text(row: dict[str, Any]) -> str:
    if row["outcome"] == "failed":
        return f"failed (exit code {row['exit_code']})"
    if row["outcome"] in ("stopped", WITHOUT_ENGINE):
        return f"{row['outcome']} (continue: caloron resume {row['sprint_id']})"
    return str(row["outcome"])
