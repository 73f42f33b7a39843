"""Errands whose truth is elsewhere: put here as they stand there, with the times of there."""

from __future__ import annotations

import sqlite3
from typing import Any, NamedTuple

from caloron.agentstate.file import QUEUE, SQL
from caloron.agentstate.notes import encode, resolved
from caloron.agentstate.records import TERMINAL, Errand

#: The true lease is kept where the truth is; this one only says who has the errand.
_LEASE_MS = 30 * 86_400_000
_MOVE = "UPDATE work_items SET status = :status, updated_at = :at WHERE id = :item"


class Copied(NamedTuple):
    """An errand of somewhere else."""

    id: str
    kind: str
    payload: dict[str, Any]
    owner: str


def put(
    connection: sqlite3.Connection, copied: Copied, status: str, at: int, said: str = ""
) -> None:
    """Let an errand stand as it does elsewhere since `at`; the diary tells each change of it."""
    queue = QUEUE.at(at)
    queue.enqueue(connection, copied.id, copied.kind, encode(copied.payload), owner=copied.owner)
    was = Errand(*connection.execute(SQL["item"], {"item": copied.id}).fetchone())
    if was.status == status:
        return
    if status == "pending" or was.status not in ("pending", "in_flight"):
        # What ended or waits for a person is open again before it is anything else.
        connection.execute(_MOVE, {"item": was.id, "status": "pending", "at": at})
        told = {"status": "pending", "from": was.status, "reason": said or None}
        again = "work_item_released" if was.status == "in_flight" else "work_item_reopened"
        queue.append_event(connection, again, told, actor=was.owner_agent, item=was.id, ts=at)
    if status == "in_flight":
        queue.claim_item(connection, was.id, holder=copied.owner, lease_ms=_LEASE_MS)
    elif status in TERMINAL:
        if text := resolved(was.notes, said):
            connection.execute(SQL["set_notes"], {"item": was.id, "notes": text})
        queue.settle(connection, was.id, None, status, said, copied.owner)
