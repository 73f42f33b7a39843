"""Turns decisions into rows for the journal and the queue; nothing is done here."""

from __future__ import annotations

from caloron.domain.actions import Action, CancelWork, HoldWork, RetryEffect, StartWork
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.shapes import held, read


def execute(given: Json) -> Json:
    rows = (*_actions(given, "dag_actions"), *_actions(given, "supervisor_actions"))
    return {"actions_taken": [_told(row) for row in rows], "errors": [], "rows": held(rows)}


def _actions(given: Json, name: str) -> tuple[Action, ...]:
    found: tuple[Action, ...] = read(given.get(name) or (), tuple[Action, ...], name)
    return found


def _told(action: Action) -> str:
    match action:
        case StartWork():
            return f"start:{action.work.item}"
        case HoldWork():
            return f"hold:{action.item}"
        case CancelWork():
            return f"cancel:{action.item}"
        case RetryEffect():
            return f"retry:{action.key}"
        case _:
            return action.key


if __name__ == "__main__":
    alone(execute)
