"""Turns decisions into rows for the journal and the queue; nothing is done here."""

from __future__ import annotations

from caloron.domain.actions import Action, CancelWork, HoldWork, RetryEffect, StartWork
from caloron.domain.flat import told
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.shapes import held, read


def execute(given: Json) -> Json:
    deeds = [
        deed
        for name in ("dag_actions", "supervisor_actions")
        if isinstance(given.get(name), list)
        for deed in given[name]
    ]
    if deeds and all(_is_flat(deed) for deed in deeds):
        return {"actions_taken": [told(deed) for deed in deeds], "errors": [], "rows": deeds}
    rows = (*_actions(given, "dag_actions"), *_actions(given, "supervisor_actions"))
    return {"actions_taken": [_told(row) for row in rows], "errors": [], "rows": held(rows)}


def _is_flat(deed: Json) -> bool:
    """Whether it is of a flat state: by its task, or of an agent of which no more is known."""
    return isinstance(deed, dict) and ("task_id" in deed or "agent_id" in deed)


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
