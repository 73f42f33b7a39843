"""A first plan from a brief, by rules: one task per clause, each after the one before."""

from __future__ import annotations

import re

from caloron.domain.plan import MAX_TASKS, MAX_TITLE
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.names import slug

_REVIEWER = "reviewer-1"
_AGENTS = 2
_BREAK = re.compile(r"[;,\n]+|\.+(?=\s|$)")
_BULLET = re.compile(r"^(?:[-*•]|\d+[.)])\s+|^(?:and|then|and then)\s+", re.IGNORECASE)


def execute(given: Json) -> Json:
    brief, agents = given["brief"], given.get("num_agents")
    number = _AGENTS if agents is None else int(agents)
    if number < 1:
        raise ValueError(f"num_agents is {number}: somebody has to do the work")
    clauses = [c for part in _BREAK.split(brief) if (c := _BULLET.sub("", part.strip()).strip())]
    if not clauses:
        raise ValueError("brief: it names nothing that is to be done")
    if len(clauses) > MAX_TASKS:
        raise ValueError(f"brief: {len(clauses)} tasks; at most {MAX_TASKS} are allowed")
    tasks = {
        f"task-{place}": _record(place, clause, f"agent-{(place - 1) % number + 1}")
        for place, clause in enumerate(clauses, 1)
    }
    sprint = f"sprint-{slug(brief)[:20].strip('-')}".rstrip("-")
    return {"dag": {"sprint_id": sprint, "tasks": tasks}, "written_by": "rules"}


def _record(place: int, clause: str, agent: str) -> Json:
    return {
        "id": f"task-{place}",
        "title": clause[:MAX_TITLE],
        "agent_prompt": clause,
        "status": "Pending",
        "depends_on": [f"task-{place - 1}"] if place > 1 else [],
        "agent_id": agent,
        "reviewer_id": _REVIEWER,
        "issue_number": None,
        "pr_number": None,
        "started_at": None,
        "completed_at": None,
        "intervention_count": 0,
    }


if __name__ == "__main__":
    alone(execute)
