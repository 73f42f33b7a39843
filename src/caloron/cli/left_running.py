"""Agents that still run although no engine drives their sprint: theirs was killed."""

from __future__ import annotations

import sqlite3
from typing import Any

from caloron.ledger.locate import ProjectPaths

# The status is said twice: only then is the short index of open work used.
_AT_WORK = """
SELECT w.id, l.token FROM work_items w JOIN leases l ON l.item = w.id
WHERE w.status = 'in_flight' AND w.status IN ('pending', 'in_flight') AND l.result IS NULL
ORDER BY w.created_at, w.id
"""
_TICKED = "SELECT key FROM kv WHERE key LIKE 'visited/%'"


def left_running(
    found: ProjectPaths, connection: sqlite3.Connection, sprint: str = ""
) -> list[dict[str, Any]]:
    """The agents of a sprint, or of any, whose process lives; to be asked without an engine.

    Those of a sprint that `caloron tick` drives are meant to run between two ticks.
    """
    scope = f"{sprint}/" if sprint else ""
    ticked = {row["key"].removeprefix("visited/") for row in connection.execute(_TICKED)}
    rows = [
        row
        for row in connection.execute(_AT_WORK)
        if row["id"].startswith(scope) and row["id"].partition("/")[0] not in ticked
    ]
    if not rows:
        return []
    from caloron.agents import launch

    running = []
    for row in rows:
        pid = launch.agent_pid(found.runs / row["id"] / str(row["token"]))
        if pid:
            name, task, work = row["id"].split("/")
            role = work.partition("-")[2]
            running.append({"sprint_id": name, "task": task, "role": role, "pid": pid})
    return running


def told(agent: dict[str, Any]) -> str:
    """One line for people: who runs, and how that is continued or ended."""
    return (
        f"Its engine is gone; agent {agent['task']} ({agent['role']}) still works, process"
        f" {agent['pid']}: `caloron resume {agent['sprint_id']}` adopts it, `caloron stop` ends it"
    )
