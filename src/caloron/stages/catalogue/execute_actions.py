"""Turns decisions into rows for the journal and the queue; nothing is done here."""

from __future__ import annotations

from caloron.domain.actions import Action
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.shapes import plain, read
from caloron.stages.dag import execute_actions
from caloron.stages.sprint import ExecuteInput


def execute(given: Json) -> Json:
    rows, told = execute_actions(
        ExecuteInput(
            dag_actions=_actions(given, "dag_actions"),
            supervisor_actions=_actions(given, "supervisor_actions"),
        )
    )
    return {"actions_taken": list(told), "errors": [], "rows": plain(rows)}


def _actions(given: Json, name: str) -> tuple[Action, ...]:
    found: tuple[Action, ...] = read(given.get(name) or [], tuple[Action, ...], name)
    return found


if __name__ == "__main__":
    alone(execute)
