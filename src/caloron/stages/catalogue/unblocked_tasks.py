"""The tasks that could start now."""

from __future__ import annotations

from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.shapes import is_flat, plain, records_of, state_of
from caloron.stages.dag import unblocked_tasks


def execute(given: Json) -> Json:
    state = given["state"]
    ready = plain(unblocked_tasks(state_of(state)))
    if is_flat(state):
        # There an agent has a name of its own.
        records = records_of(state)
        for one in ready:
            one["agent_id"] = records[one["task_id"]].agent_id or one["agent_id"]
    return {"ready_tasks": ready}


if __name__ == "__main__":
    alone(execute)
