"""Work items whose truth is another database: written here with the status they have there."""

from __future__ import annotations

import sqlite3
from typing import Any, NamedTuple

from caloron.agentstate.records import encode

#: The true lease is in the other database; this one only keeps other programs from a claim.
_LEASE_MS = 30 * 86_400_000
_ADD = """
INSERT OR IGNORE INTO work_items (id, kind, payload, status, owner_agent, created_at, updated_at)
VALUES (:id, :kind, :payload, 'pending', :owner, :at, :at)
"""
#: The trigger against foreign claims lets a status pass that the lease already has.
_LEASE = """
UPDATE caloron_leases
SET status = 'in_flight', token = token + 1, holder = :owner, expires_at = :at + :lease_ms,
    attempt = attempt + 1, started_at = :at, guest = 0
WHERE item = :id
"""
_MOVE = (
    "UPDATE work_items SET status = :status, owner_agent = :owner, updated_at = :at WHERE id = :id"
)


class MirroredItem(NamedTuple):
    """A work item of another database."""

    id: str
    kind: str
    payload: dict[str, Any]
    owner: str


def mirror_item(
    connection: sqlite3.Connection, item: MirroredItem, at: int, status: str = ""
) -> None:
    """Add the item if it is missing; with a status, let it have that one since `at`."""
    values = item._asdict() | {"payload": encode(item.payload), "at": at}
    connection.execute(_ADD, values)
    row = connection.execute("SELECT status FROM work_items WHERE id = ?", (item.id,)).fetchone()
    if status and row["status"] != status:
        values |= {"status": status, "lease_ms": _LEASE_MS}
        if status == "in_flight":
            connection.execute(_LEASE, values)
        connection.execute(_MOVE, values)
