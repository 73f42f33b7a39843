"""One errand in an open transaction: its row, its lease, and why something is refused to it."""

from __future__ import annotations

import sqlite3

from caloron.agentstate.file import QUEUE, SQL
from caloron.agentstate.records import TERMINAL, Errand, Held, Lease
from caloron.errors import HeldByAnother, NotFound, PreconditionFailed
from caloron.store.queue import Claim


def errand_in(connection: sqlite3.Connection, item: str) -> Errand:
    row = connection.execute(SQL["item"], {"item": item}).fetchone()
    if row is None:
        raise unknown(item)
    return Errand(*row)


def set_notes(connection: sqlite3.Connection, item: str, notes: str | None) -> None:
    """New notes, if there are any; a statement of its own, because each change of notes is kept."""
    if notes:
        connection.execute(SQL["set_notes"], {"item": item, "notes": notes})


def lease_in(connection: sqlite3.Connection, item: str) -> Lease:
    row = connection.execute(SQL["lease"], {"item": item}).fetchone()
    return Lease(row["token"], row["holder"], row["expires_at"], row["attempt"])


def is_held(connection: sqlite3.Connection, errand: Errand, token: int) -> bool:
    return errand.status == "in_flight" and lease_in(connection, errand.id).token == token


def held_in(connection: sqlite3.Connection, taken: Claim) -> Held:
    row = connection.execute(SQL["held"], {"item": taken.item}).fetchone()
    return Held(Errand(*row[:8]), Lease(*row[8:]))


def unknown(item: str) -> NotFound:
    return NotFound(f"there is no work item {item}", hint="errands list shows what there is")


def not_from(errand: Errand, what: str) -> PreconditionFailed:
    """What cannot be done to an errand in this state; the hint says what can."""
    message = f"{errand.id} is {errand.status} and cannot be {what}"
    return PreconditionFailed(message, hint=_next_step(errand, what))


def _next_step(errand: Errand, what: str) -> str:
    if errand.status == "pending":
        if what in ("retried", "reopened"):
            return f"it waits already: errands claim --id {errand.id} --owner OWNER"
        if what == "answered":
            return f"nothing was asked; to ask: errands park --id {errand.id} --question TEXT"
        return f"claim it first: errands claim --id {errand.id} --owner OWNER"
    if errand.status == "in_flight":
        holder = errand.owner_agent or "nobody"
        return f"{holder} has it; to take it away: errands release --id {errand.id}"
    if errand.status == "waiting_human":
        return f"answer it first: errands answer --id {errand.id} --answer TEXT"
    return f"take it up again first: errands reopen --id {errand.id}"


def refuse_ended(errand: Errand, what: str) -> None:
    if errand.status in TERMINAL:
        raise not_from(errand, what)


def not_claimable(connection: sqlite3.Connection, item: str) -> Exception:
    errand = errand_in(connection, item)
    if errand.status == "in_flight":
        return held_by(item, lease_in(connection, item), QUEUE.now_ms(connection))
    return not_from(errand, "claimed")


def held_by(item: str, lease: Lease, now: int) -> HeldByAnother:
    left = max(0, lease.expires_at - now) // 1000
    return HeldByAnother(
        f"{item} is held by {lease.holder or 'nobody'} for {left} s more",
        hint=f"wait for it, or take it away: errands release --id {item}",
    )


def lost(connection: sqlite3.Connection, item: str) -> HeldByAnother:
    errand = errand_in(connection, item)
    return HeldByAnother(
        f"the lease of {item} is lost: it is {errand.status},"
        f" its owner is {errand.owner_agent or 'nobody'}",
        hint="stop working on it; what was done meanwhile stands",
    )
