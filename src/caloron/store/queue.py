"""The work queue: claims with a lease and a fencing token, and the append-only diary beside it.

Each function takes an open transaction, so that a change and the event that records it commit
together. A write that carries a token changes nothing once a later claim has raised it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from caloron.store.database import Migration, migrations_in
from caloron.store.statements import load_statements

_HERE = Path(__file__).parent
_SQL = load_statements(_HERE / "sql" / "queue.sql")

QUEUE_MIGRATIONS: tuple[Migration, ...] = migrations_in(_HERE / "migrations", "store")


class LeaseLost(Exception):
    """Somebody else holds the item now: end your own agent and stop."""


class Claim(NamedTuple):
    """The right to work on an item, as long as its token is the newest."""

    item: str
    kind: str
    payload: str
    token: int
    attempt: int


class InFlight(NamedTuple):
    """An item that somebody claimed: who, until when, and what came of it so far."""

    item: str
    kind: str
    payload: str
    token: int
    holder: str
    expires_at: int
    attempt: int
    started_at: int | None
    activity_at: int | None
    result: str | None
    now_ms: int


def now_ms(connection: sqlite3.Connection) -> int:
    """The database's clock, the only one that leases know."""
    return int(connection.execute(_SQL["now"]).fetchone()[0])


def append_event(
    connection: sqlite3.Connection,
    type: str,
    payload: dict[str, Any],
    *,
    actor: str | None = None,
    item: str | None = None,
    key: str = "",
) -> bool:
    """Write one line of the diary; with a key, only the first time."""
    if key and connection.execute(_SQL["event_of_key"], {"key": key}).fetchone():
        return False
    values = {"type": type, "actor": actor, "item": item, "payload": json.dumps(payload)}
    connection.execute(_SQL["append_event"], values)
    if key:
        connection.execute(_SQL["event_key"], {"key": key})
    return True


def enqueue(
    connection: sqlite3.Connection,
    item: str,
    kind: str,
    payload: str,
    *,
    owner: str | None = None,
    priority: int = 0,
    not_before: int = 0,
) -> bool:
    """Put an item into the queue; False if it is already known."""
    values = {"id": item, "kind": kind, "payload": payload, "owner": owner}
    added = connection.execute(_SQL["enqueue"], values).rowcount > 0
    connection.execute(
        _SQL["enqueue_lease"], {"id": item, "priority": priority, "not_before": not_before}
    )
    if added:
        append_event(
            connection,
            "work_item_created",
            {"kind": kind, "status": "pending"},
            actor=owner,
            item=item,
        )
    return added


def has_pending(connection: sqlite3.Connection) -> bool:
    """Whether anything waits in the queue: a look is cheaper than a claim."""
    return connection.execute(_SQL["has_pending"]).fetchone() is not None


def claim(
    connection: sqlite3.Connection,
    kinds: Iterable[str],
    *,
    holder: str,
    lease_ms: int,
    cap: int,
    scope: str = "",
) -> Claim | None:
    """Take the next item of these kinds, unless `cap` of them are already being worked on.

    `scope` is the beginning that the item's id must have; the cap counts across all scopes.
    """
    values = {
        "kinds": json.dumps(list(kinds)),
        "holder": holder,
        "lease_ms": lease_ms,
        "cap": cap,
        "scope": scope,
    }
    lease = connection.execute(_SQL["claim"], values).fetchone()
    if lease is None:
        return None
    item = lease["item"]
    connection.execute(_SQL["claimed_item"], {"id": item, "owner": holder})
    claimed = {"status": "in_flight", "token": lease["token"]}
    append_event(connection, "work_item_claimed", claimed, actor=holder, item=item)
    return Claim(item, lease["kind"], lease["payload"], lease["token"], lease["attempt"])


def begin_attempt(connection: sqlite3.Connection, item: str, token: int, lease_ms: int) -> int:
    """An agent process was started: count it. Returns its number."""
    row = connection.execute(
        _SQL["begin_attempt"], {"item": item, "token": token, "lease_ms": lease_ms}
    ).fetchone()
    if row is None:
        raise LeaseLost(item)
    begun = {"attempt": row["attempt"], "token": token}
    append_event(connection, "attempt_started", begun, item=item)
    return int(row["attempt"])


def renew(
    connection: sqlite3.Connection, item: str, token: int, lease_ms: int, *, active: bool
) -> None:
    """Say that the holder lives; `active` says that its agent does something too."""
    values = {"item": item, "token": token, "lease_ms": lease_ms, "active": active}
    if connection.execute(_SQL["renew"], values).rowcount == 0:
        raise LeaseLost(item)


def write_result(
    connection: sqlite3.Connection, item: str, token: int, result: dict[str, Any]
) -> None:
    """What the attempt came to, written once by the holder of the token."""
    values = {"item": item, "token": token, "result": json.dumps(result)}
    if connection.execute(_SQL["write_result"], values).rowcount == 0:
        raise LeaseLost(item)
    append_event(connection, "attempt_ended", result, item=item)


def settle(
    connection: sqlite3.Connection, item: str, token: int, status: str, note: str = ""
) -> None:
    """Close an item as done or failed, by the holder of its token."""
    values = {"item": item, "token": token, "status": status}
    if connection.execute(_SQL["settle"], values).rowcount == 0:
        raise LeaseLost(item)
    append_event(
        connection, "work_item_resolved", {"status": status, "notes": note or None}, item=item
    )


def reopen(connection: sqlite3.Connection, item: str, reason: str) -> None:
    """Back into the queue for another attempt; whoever still holds it is fenced off."""
    connection.execute(_SQL["fence"], {"item": item})
    connection.execute(_SQL["reopen"], {"item": item})
    append_event(connection, "work_item_reopened", {"reason": reason}, item=item)


def cancel(connection: sqlite3.Connection, item: str, reason: str) -> bool:
    """Nobody needs the result any more; whoever still works on it is fenced off."""
    cancelled = connection.execute(_SQL["cancel"], {"item": item}).rowcount > 0
    if cancelled:
        connection.execute(_SQL["fence"], {"item": item})
        append_event(
            connection, "work_item_resolved", {"status": "cancelled", "notes": reason}, item=item
        )
    return cancelled


def hold(connection: sqlite3.Connection, item: str, until_ms: int) -> None:
    """An item that waits is not to be claimed before a time."""
    connection.execute(_SQL["hold"], {"item": item, "until": until_ms})


def pending(connection: sqlite3.Connection, scope: str) -> frozenset[str]:
    """The items that wait to be claimed and whose ids begin with `scope`."""
    found = connection.execute(_SQL["pending"]).fetchall()
    return frozenset(row["id"] for row in found if row["id"].startswith(scope))


def attempts(connection: sqlite3.Connection, scope: str) -> dict[str, int]:
    """How many processes were started for each item whose id begins with `scope`."""
    found = connection.execute(_SQL["attempts"], {"scope": scope}).fetchall()
    return {row["item"]: row["attempt"] for row in found}


def in_flight(connection: sqlite3.Connection) -> list[InFlight]:
    """Everything that somebody holds right now."""
    found = connection.execute(_SQL["in_flight"]).fetchall()
    return [
        InFlight(r["id"], r["kind"], r["payload"], *(r[name] for name in r.keys()[3:]))
        for r in found
    ]
