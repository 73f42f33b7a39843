"""How far a sprint is; complete means that no task can move without a person."""

from __future__ import annotations

from caloron.domain.status import Status
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.shapes import state_of


def execute(given: Json) -> Json:
    statuses = [task.status for task in state_of(given["state"]).tasks.values()]
    done = statuses.count(Status.DONE)
    blocked = statuses.count(Status.BLOCKED) + statuses.count(Status.ESCALATED)
    cancelled = statuses.count(Status.CANCELLED)
    return {
        "complete": bool(statuses) and done + blocked + cancelled == len(statuses),
        "total": len(statuses),
        "done": done,
        "blocked": blocked,
        "cancelled": cancelled,
    }


if __name__ == "__main__":
    alone(execute)
