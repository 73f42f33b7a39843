"""Agents that still run although no engine drives their sprint: theirs was killed."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from caloron.ledger.locate import ProjectPaths
from caloron.store.lock import holder

if TYPE_CHECKING:
    from caloron.domain.needs import Need

#: How a sprint stands whose engine was killed while agents of it still run.
WITHOUT_ENGINE = "without an engine"

# The status is said twice: only then is the short index of open work used.
_AT_WORK = """
SELECT w.id, l.token, (SELECT number FROM sprints
                       WHERE id = substr(w.id, 1, instr(w.id, '/') - 1)) AS number
FROM work_items w JOIN leases l ON l.item = w.id
WHERE w.status = 'in_flight' AND w.status IN ('pending', 'in_flight') AND l.result IS NULL
ORDER BY w.created_at, w.id
"""
_TICKED = "SELECT key FROM kv WHERE key LIKE 'visited/%'"


def left_running(
    found: ProjectPaths, connection: sqlite3.Connection, sprint: str = ""
) -> list[dict[str, Any]]:
    """The agents of a sprint, or of any, whose process lives; none while an engine is at work.

    Those of a sprint that `caloron tick` drives are meant to run between two ticks.
    """
    if holder(found.engine_lock) is not None:
        return []
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
            who = {"sprint_id": name, "number": row["number"], "task": task, "role": role}
            running.append(who | {"pid": pid})
    return running


def told(agent: dict[str, Any]) -> str:
    """One line for people: who runs, and how that is continued or ended."""
    return (
        f"Its engine is gone; agent {agent['task']} ({agent['role']}) still works, process"
        f" {agent['pid']}: `caloron resume {agent['sprint_id']}` adopts it, `caloron stop` ends it"
    )


def with_running(need: Need, agents: list[dict[str, Any]], options: str) -> Need:
    """What waits for a person in a sprint of which these agents still run: it is not stopped."""
    if need.kind != "resume" or not agents:
        return need
    import msgspec

    why = "; ".join(told(agent) for agent in agents)
    commands = (*need.commands, f"caloron stop{options}")
    return msgspec.structs.replace(need, why=why, commands=commands)
