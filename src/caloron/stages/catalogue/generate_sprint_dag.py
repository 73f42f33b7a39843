"""A first plan from a brief: by a model where one is configured, else one task per clause."""

from __future__ import annotations

import re

from caloron.domain.plan import MAX_TASKS, MAX_TITLE
from caloron.graph.jsontext import Json
from caloron.graph.protocols import Call
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.names import slug
from caloron.stages.catalogue.planned import LONGEST_ID, MOST_PLANNED, planned
from caloron.stages.catalogue.with_model import written

_REVIEWER = "reviewer-1"
_AGENTS = 2
_BREAK = re.compile(r"[;,\n]+|\.+(?=\s|$)")
_BULLET = re.compile(r"^(?:[-*•]|\d+[.)])\s+|^(?:and|then|and then)\s+", re.IGNORECASE)


def execute(given: Json, call: Call | None = None) -> Json:
    brief, agents = given["brief"], given.get("num_agents")
    number = _AGENTS if agents is None else int(agents)
    if number < 1:
        raise ValueError(f"num_agents is {number}: somebody has to do the work")
    if not brief.strip():
        raise ValueError("brief: it names nothing that is to be done")
    name = f"sprint-{slug(brief)[:20].strip('-')}".rstrip("-")

    def dag(tasks: list[Json]) -> dict[str, Json]:
        records = [_record(task, place % number + 1) for place, task in enumerate(tasks)]
        return {"dag": {"sprint_id": name, "tasks": {one["id"]: one for one in records}}}

    return written(
        "generate_sprint_dag",
        {"The brief": brief, "The repository": given.get("repo_context") or ""},
        lambda answer, _model: dag(planned(answer)),
        lambda: dag(_by_rules(brief)),
        call=call,
        agents=number,
        most=MOST_PLANNED,
        longest=LONGEST_ID,
    )


def _by_rules(brief: str) -> list[Json]:
    """One task per clause, each after the one before."""
    clauses = [c for part in _BREAK.split(brief) if (c := _BULLET.sub("", part.strip()).strip())]
    if not clauses:
        raise ValueError("brief: it names nothing that is to be done")
    if len(clauses) > MAX_TASKS:
        raise ValueError(f"brief: {len(clauses)} tasks; at most {MAX_TASKS} are allowed")
    return [
        {
            "id": f"task-{place}",
            "title": clause[:MAX_TITLE],
            "agent_prompt": clause,
            "depends_on": [f"task-{place - 1}"] if place > 1 else [],
        }
        for place, clause in enumerate(clauses, 1)
    ]


def _record(task: Json, agent: int) -> Json:
    return {
        "id": task["id"],
        "title": task["title"],
        "agent_prompt": task["agent_prompt"],
        "status": "Pending",
        "depends_on": task["depends_on"],
        "agent_id": f"agent-{agent}",
        "reviewer_id": _REVIEWER,
        "issue_number": None,
        "pr_number": None,
        "started_at": None,
        "completed_at": None,
        "intervention_count": 0,
    }


if __name__ == "__main__":
    alone(execute)
