"""The work queue: claims with a lease and a fencing token, and the append-only event log.

Each function takes an open transaction, so that a change and the event that records it commit
together. A write that carries a token changes nothing once a later claim has raised it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from caloron.store.database import Migration, load_statements, migrations_in, with_prefix

_HERE = Path(__file__).parent
#: Our own tables beside `work_items` and `events`; prefixed in databases of other programs.
_OWN_TABLES = ("leases", "event_keys", "clock")

QUEUE_MIGRATIONS: tuple[Migration, ...] = migrations_in(_HERE / "migrations", "store")


class LeaseLost(Exception):
    """Another process holds the item now: end the own agent and stop."""


class Claim(NamedTuple):
    """The right to work on an item, as long as its token is the newest."""

    item: str
    kind: str
    payload: str
    token: int
    attempt: int


class InFlight(NamedTuple):
    """A claimed item with its holder, the end of its lease, and its result so far."""

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


class Queue:
    """The queue of one kind of database.

    `prefix`: of our own tables there. `statements` replace those of `queue.sql`, or are added.
    `plain`: events are exactly those of agent-state, without a token.
    """

    def __init__(
        self,
        prefix: str = "",
        statements: Mapping[str, str] | None = None,
        *,
        encode: Callable[[dict[str, Any]], str] = json.dumps,
        plain: bool = False,
    ) -> None:
        shared = load_statements(_HERE / "sql" / "queue.sql")
        self._sql = with_prefix(shared, _OWN_TABLES, prefix) if prefix else shared
        self._sql |= statements or {}
        self._encode = encode
        self._plain = plain

    def now_ms(self, connection: sqlite3.Connection) -> int:
        """Return the time of the database's clock, which is the only clock of leases."""
        return int(connection.execute(self._sql["now"]).fetchone()[0])

    def append_event(
        self,
        connection: sqlite3.Connection,
        type: str,
        payload: dict[str, Any] | str,
        *,
        actor: str | None = None,
        item: str | None = None,
        key: str = "",
        ts: int | None = None,
    ) -> bool:
        """Append an event; False if there is one with this key already.

        A payload that is text is JSON already. The default of `ts` is now.
        """
        if key and connection.execute(self._sql["event_of_key"], {"key": key}).fetchone():
            return False
        text = payload if isinstance(payload, str) else self._encode(payload)
        values = {"ts": ts, "type": type, "actor": actor, "item": item, "payload": text}
        connection.execute(self._sql["append_event"], values)
        if key:
            connection.execute(self._sql["event_key"], {"key": key})
        return True

    def enqueue(
        self,
        connection: sqlite3.Connection,
        item: str,
        kind: str,
        payload: str,
        *,
        owner: str | None = None,
        priority: int = 0,
        not_before: int = 0,
        status: str = "pending",
    ) -> bool:
        """Put an item into the queue; False if it is already known."""
        values = {"id": item, "kind": kind, "payload": payload, "owner": owner}
        now = self.now_ms(connection)
        added = connection.execute(self._sql["enqueue"], values | {"status": status, "now": now})
        connection.execute(
            self._sql["enqueue_lease"], {"id": item, "priority": priority, "not_before": not_before}
        )
        if not added.rowcount:
            return False
        created = {"kind": kind, "status": status}
        self.append_event(connection, "work_item_created", created, actor=owner, item=item, ts=now)
        return True

    def has_pending(
        self, connection: sqlite3.Connection, kinds: Iterable[str], *, scope: str = ""
    ) -> bool:
        """True if an item of these kinds and this scope is pending. Cheaper than a claim."""
        values = {"kinds": json.dumps(list(kinds)), "scope": scope}
        return connection.execute(self._sql["has_pending"], values).fetchone() is not None

    def claim(
        self,
        connection: sqlite3.Connection,
        kinds: Iterable[str],
        *,
        holder: str,
        lease_ms: int,
        cap: int,
        scope: str = "",
    ) -> Claim | None:
        """Claim the next item of these kinds, unless `cap` of them are in progress already.

        `scope`: the beginning of the item's id. The cap counts across all scopes.
        """
        wanted = list(kinds)
        values = {
            "kinds": json.dumps(wanted),
            "kind": wanted[0] if wanted else None,
            "holder": holder,
            "lease_ms": lease_ms,
            "cap": cap,
            "scope": scope,
            "now": self.now_ms(connection),
        }
        # Faster where there are statements for these: no list of kinds has to be read.
        few = ("claim_any", "claim_kind")[len(wanted)] if len(wanted) < 2 else "claim"
        lease = connection.execute(self._sql.get(few, self._sql["claim"]), values).fetchone()
        return self._taken(connection, lease, values)

    def _taken(
        self, connection: sqlite3.Connection, lease: sqlite3.Row | None, asked: dict[str, Any]
    ) -> Claim | None:
        """Record a lease that was granted in the item and in the event log."""
        if lease is None:
            return None
        item, holder, now = lease["item"], asked["holder"], asked["now"]
        connection.execute(self._sql["claimed_item"], {"id": item, "owner": holder, "now": now})
        claimed: dict[str, Any] | str = '{"status":"in_flight"}'
        if not self._plain:
            claimed = {"status": "in_flight", "token": lease["token"]}
        self.append_event(connection, "work_item_claimed", claimed, actor=holder, item=item, ts=now)
        return Claim(item, lease["kind"], lease["payload"], lease["token"], lease["attempt"])

    def claim_item(
        self, connection: sqlite3.Connection, item: str, *, holder: str, lease_ms: int
    ) -> Claim | None:
        """Claim this item if it is pending, or if the lease of its last holder has expired."""
        values = {"item": item, "holder": holder, "lease_ms": lease_ms}
        values["now"] = self.now_ms(connection)
        lease = connection.execute(self._sql["claim_item"], values).fetchone()
        return self._taken(connection, lease, values)

    def begin_attempt(
        self, connection: sqlite3.Connection, item: str, token: int, lease_ms: int
    ) -> int:
        """Count a started agent process, and return its number."""
        row = connection.execute(
            self._sql["begin_attempt"], {"item": item, "token": token, "lease_ms": lease_ms}
        ).fetchone()
        if row is None:
            raise LeaseLost(item)
        begun = {"attempt": row["attempt"], "token": token}
        self.append_event(connection, "attempt_started", begun, item=item)
        return int(row["attempt"])

    def renew(
        self, connection: sqlite3.Connection, item: str, token: int, lease_ms: int, *, active: bool
    ) -> None:
        """Renew the lease; `active`: the agent has done something since the last renewal."""
        values = {"item": item, "token": token, "lease_ms": lease_ms, "active": active}
        if connection.execute(self._sql["renew"], values).rowcount == 0:
            raise LeaseLost(item)

    def write_result(
        self, connection: sqlite3.Connection, item: str, token: int, result: dict[str, Any]
    ) -> None:
        """Write the result of an attempt, once, by the holder of the token."""
        values = {"item": item, "token": token, "result": json.dumps(result)}
        if connection.execute(self._sql["write_result"], values).rowcount == 0:
            raise LeaseLost(item)
        self.append_event(connection, "attempt_ended", result, item=item)

    def settle(
        self,
        connection: sqlite3.Connection,
        item: str,
        token: int | None,
        status: str,
        note: str = "",
        actor: str | None = None,
    ) -> int:
        """Close an item as done or failed, by the holder of its token; return the time."""
        now = self.now_ms(connection)
        values = {"item": item, "token": token, "status": status, "now": now}
        if connection.execute(self._sql["settle"], values).rowcount == 0:
            raise LeaseLost(item)
        ended = {"status": status, "notes": note or None}
        self.append_event(connection, "work_item_resolved", ended, actor=actor, item=item, ts=now)
        return now

    def reopen(
        self, connection: sqlite3.Connection, item: str, reason: str, payload: str | None = None
    ) -> None:
        """Put an item back into the queue, and fence off its holder.

        `payload` replaces that of the item: the next attempt may know more than the last.
        """
        connection.execute(self._sql["fence"], {"item": item})
        connection.execute(self._sql["reopen"], {"item": item, "payload": payload})
        self.append_event(connection, "work_item_reopened", {"reason": reason}, item=item)

    def cancel(
        self, connection: sqlite3.Connection, item: str, reason: str, *, held: bool = False
    ) -> bool:
        """Cancel an item and fence off its holder; `held`: a person may let it continue."""
        cancelled = connection.execute(self._sql["cancel"], {"item": item}).rowcount > 0
        if cancelled:
            connection.execute(self._sql["fence"], {"item": item})
            self.append_event(
                connection,
                "work_item_resolved",
                {"status": "cancelled", "notes": reason} | ({"held": True} if held else {}),
                item=item,
            )
        return cancelled

    def hold(self, connection: sqlite3.Connection, item: str, until_ms: int) -> None:
        """Let a pending item not be claimed before a time."""
        connection.execute(self._sql["hold"], {"item": item, "until": until_ms})

    def pending(self, connection: sqlite3.Connection, scope: str) -> frozenset[str]:
        """Return the pending items whose ids begin with `scope`."""
        rows = connection.execute(self._sql["pending"]).fetchall()
        return frozenset(row["id"] for row in rows if row["id"].startswith(scope))

    def ended(self, connection: sqlite3.Connection, scope: str) -> frozenset[str]:
        """Return the items with a result that is not settled, and ids that begin with `scope`."""
        leases = self.in_flight(connection)
        return frozenset(x.item for x in leases if x.result and x.item.startswith(scope))

    def attempts(self, connection: sqlite3.Connection, scope: str) -> dict[str, int]:
        """Return the number of started processes per item whose id begins with `scope`."""
        rows = connection.execute(self._sql["attempts"], {"scope": scope}).fetchall()
        return {row["item"]: row["attempt"] for row in rows}

    def in_flight(self, connection: sqlite3.Connection) -> list[InFlight]:
        """Return all leases."""
        return [InFlight(*row) for row in connection.execute(self._sql["in_flight"])]


#: The queue of a ledger.
_LEDGER = Queue()
now_ms = _LEDGER.now_ms
append_event = _LEDGER.append_event
enqueue = _LEDGER.enqueue
has_pending = _LEDGER.has_pending
claim = _LEDGER.claim
begin_attempt = _LEDGER.begin_attempt
renew = _LEDGER.renew
write_result = _LEDGER.write_result
settle = _LEDGER.settle
reopen = _LEDGER.reopen
cancel = _LEDGER.cancel
hold = _LEDGER.hold
pending = _LEDGER.pending
ended = _LEDGER.ended
attempts = _LEDGER.attempts
in_flight = _LEDGER.in_flight
