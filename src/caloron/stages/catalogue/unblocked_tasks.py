"""The tasks that could start now."""

from __future__ import annotations

from caloron.domain.flat import Record
from caloron.domain.status import Status
from caloron.graph.held import opened
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.shapes import is_flat, records_of, state_of


def execute(given: Json) -> Json:
    state = state_of(given["state"])
    # There an agent has a name of its own.
    records = records_of(opened(given["state"])) if is_flat(given["state"]) else {}
    return {
        "ready_tasks": [
            {
                "task_id": task.id,
                "title": task.plan.title,
                "agent_id": records.get(task.id, Record()).agent_id or task.agent,
                "issue_number": task.issue,
            }
            for task in state.tasks.values()
            if task.status is Status.READY
        ]
    }


if __name__ == "__main__":
    alone(execute)
