"""The queue of one agent: enqueue, claim with a lease, resolve; no item is done twice by accident.

Every change is one transaction together with the event that records it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from caloron.agentstate.database import QUEUE, SQL
from caloron.agentstate.records import (
    TERMINAL,
    ClaimedItem,
    Enqueued,
    Lease,
    Replayed,
    WorkItem,
    annotated,
    encode,
    resolved,
)
from caloron.errors import InUse, NotFound, PreconditionFailed, UsageError
from caloron.store.database import Database
from caloron.store.queue import Claim, LeaseLost

#: Ten minutes, as for the claim of a program without leases.
LEASE_MS = 600_000
MAX_ATTEMPTS = 3
#: The true lease is in the other database; this one only keeps other programs from a claim.
_MIRROR_LEASE_MS = 30 * 86_400_000


class WorkItems:
    """The work items in one agent's database."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def get(self, item: str) -> WorkItem:
        """Return one work item."""
        with self._db.snapshot() as connection:
            return item_in(connection, item)

    def enqueue(
        self,
        item: str,
        kind: str,
        payload: Any,
        *,
        owner: str | None = None,
        notes: str | None = None,
        status: str = "pending",
        priority: int = 0,
        delay_ms: int = 0,
    ) -> Enqueued:
        """Add a work item; a known item of the same id stays as it is.

        A payload that is text is stored as it is; anything else becomes JSON.
        """
        text = payload if isinstance(payload, str) else encode(payload)
        with self._db.transaction("enqueue") as connection:
            known = connection.execute(SQL["item"], {"item": item}).fetchone()
            if known is not None:
                return self._handle_duplicate(connection, WorkItem(*known), kind, text)
            not_before = QUEUE.now_ms(connection) + delay_ms if delay_ms else 0
            QUEUE.enqueue(
                connection, item, kind, text, owner=owner, status=status,
                priority=priority, not_before=not_before,
            )  # fmt: skip
            set_notes(connection, item, notes)
            return Enqueued(True, item_in(connection, item))

    def _handle_duplicate(
        self, connection: sqlite3.Connection, known: WorkItem, kind: str, payload: str
    ) -> Enqueued:
        """Accept the same delivery silently; record one that differs as a conflict, once."""
        differs = [] if kind == known.kind else ["kind"]
        if not _same_json(payload, known.payload):
            differs.append("payload")
        if differs:
            from hashlib import sha256

            # The key is part of a primary key, so a long payload is hashed.
            digest = sha256(f"{kind}\0{payload}".encode("utf-8", "replace")).hexdigest()
            key = f"differs:{known.id}:{digest}"
            details = {"differs": differs, "kind": kind, "payload": payload}
            QUEUE.append_event(connection, "work_item_conflict", details, item=known.id, key=key)
        return Enqueued(False, known, tuple(differs))

    def claim(self, item: str, owner: str, *, lease_ms: int = LEASE_MS) -> ClaimedItem:
        """Claim this work item; refused while any owner, also the same one, has a lease."""
        with self._db.transaction("claim") as connection:
            taken = QUEUE.claim_item(connection, item, holder=owner, lease_ms=lease_ms)
            if taken is None:
                raise not_claimable(connection, item)
            return claimed_in(connection, taken)

    def claim_next(
        self,
        owner: str,
        *,
        kinds: Sequence[str] = (),
        lease_ms: int = LEASE_MS,
        max_attempts: int = 0,
    ) -> ClaimedItem | None:
        """Claim the most urgent work item that is pending or whose lease is over.

        With `max_attempts`, an item that was claimed so often without an end fails instead.
        """
        with self._db.transaction("claim") as connection:
            if max_attempts:
                self._give_up(connection, kinds, max_attempts)
            taken = QUEUE.claim(connection, kinds, holder=owner, lease_ms=lease_ms, cap=0)
            return None if taken is None else claimed_in(connection, taken)

    def _give_up(self, connection: sqlite3.Connection, kinds: Sequence[str], most: int) -> None:
        values = {"kinds": json.dumps(list(kinds)), "most": most}
        for row in connection.execute(SQL["worn_out"], values).fetchall():
            reason = f"given up: claimed {most} times and never ended"
            was = item_in(connection, row["item"])
            set_notes(connection, was.id, resolved(was.notes, reason))
            QUEUE.settle(connection, was.id, None, "failed", reason, was.owner_agent)

    def renew(self, item: str, token: int, *, lease_ms: int = LEASE_MS) -> Lease:
        """Renew a lease."""
        with self._db.transaction("renew") as connection:
            try:
                QUEUE.renew(connection, item, token, lease_ms, active=True)
            except LeaseLost:
                raise lease_lost(connection, item) from None
            return lease_in(connection, item)

    def release(self, item: str, *, token: int | None = None, reason: str = "") -> WorkItem:
        """Return a work item unfinished to the queue; without a token, whoever has claimed it."""
        return self._move(
            "release", item, ("in_flight",), "pending", "work_item_released",
            {"reason": reason or None}, token=token,
        )  # fmt: skip

    def resolve(
        self,
        item: str,
        status: str,
        *,
        notes: str = "",
        token: int | None = None,
        owner: str | None = None,
    ) -> WorkItem:
        """End a work item as done, failed or cancelled.

        With a token or an owner, only if that is the claimant. Notes are added, never replaced.
        """
        if status not in TERMINAL:
            raise UsageError(f"a work item cannot end as {status!r}", hint=f"one of {TERMINAL}")
        with self._db.transaction("resolve") as connection:
            was = item_in(connection, item)
            if was.status in TERMINAL:
                raise invalid_transition(was, "resolved")
            if owner is not None and was.owner_agent != owner:
                raise InUse(f"{item} belongs to {was.owner_agent or 'nobody'}, not {owner}")
            text = resolved(was.notes, notes)
            set_notes(connection, item, text)
            try:
                at = QUEUE.settle(connection, item, token, status, notes, was.owner_agent)
            except LeaseLost:
                raise lease_lost(connection, item) from None
        return was._replace(status=status, updated_at=at, notes=text or was.notes)

    def annotate(self, item: str, patch: dict[str, Any]) -> WorkItem:
        """Put these keys into the notes of a work item in any status."""
        with self._db.transaction("annotate") as connection:
            was = item_in(connection, item)
            values = {"item": item, "notes": annotated(was.notes, patch)}
            at, owner = connection.execute(SQL["annotate"], values).fetchone()
            details = {"keys": list(patch)}
            QUEUE.append_event(
                connection, "work_item_annotated", details, actor=owner, item=item, ts=at
            )
            return item_in(connection, item)

    def park(self, item: str, question: str, *, token: int | None = None) -> WorkItem:
        """Let a work item wait for a person's answer to a question."""
        return self._move(
            "park", item, ("pending", "in_flight"), "waiting_human", "work_item_parked",
            {"question": question}, token=token, note={"question": question},
        )  # fmt: skip

    def answer(self, item: str, answer: str) -> WorkItem:
        """Record a person's answer: the work item is pending again."""
        return self._move(
            "answer", item, ("waiting_human",), "pending", "work_item_answered",
            {"answer": answer}, note={"answer": answer},
        )  # fmt: skip

    def reopen(self, item: str, reason: str = "") -> WorkItem:
        """Make a work item that has ended pending again."""
        return self._move(
            "reopen", item, TERMINAL, "pending", "work_item_reopened", {"reason": reason or None}
        )

    def retry(
        self, item: str, *, max_attempts: int = MAX_ATTEMPTS, delay_ms: int = 0, reason: str = ""
    ) -> WorkItem:
        """Make a failed or abandoned work item pending again, up to a number of attempts."""
        with self._db.transaction("retry") as connection:
            was = item_in(connection, item)
            lease, now = lease_in(connection, item), QUEUE.now_ms(connection)
            if was.status == "in_flight" and lease.expires_at > now:
                raise in_use(item, lease, now)
            if was.status not in ("failed", "in_flight"):
                raise invalid_transition(was, "retried")
            if lease.attempt >= max_attempts:
                raise PreconditionFailed(
                    f"{item} was tried {lease.attempt} times already",
                    hint=f"allow more with --max-attempts, or: errands reopen --id {item}",
                )
            details = {"reason": reason or "retry", "attempt": lease.attempt}
            self._moved(connection, was, "pending", "work_item_reopened", details)
            connection.execute(SQL["not_before"], {"item": item, "delay_ms": delay_ms})
            return item_in(connection, item)

    def replay(
        self, *, threshold_ms: int = 0, kind: str | None = None, owner: str | None = None
    ) -> list[Replayed]:
        """List the work items to take up after a start: due ones, and those whose lease is over.

        A valid lease protects an item whatever the threshold; nothing changes.
        """
        values = {"threshold_ms": threshold_ms, "kind": kind, "owner": owner}
        return [
            Replayed(
                WorkItem(*row[:8]),
                "pending" if row["status"] == "pending" else "stale",
                row["attempt"],
            )
            for row in self._db.rows(SQL["replay"], values)
        ]

    def lease(self, item: str) -> Lease:
        """Return the lease of a work item."""
        with self._db.snapshot() as connection:
            item_in(connection, item)
            return lease_in(connection, item)

    def earlier_notes(self, item: str) -> list[tuple[int, str]]:
        """Return every earlier text of the notes, with the time when it was overwritten."""
        return [(row["at"], row["notes"]) for row in self._db.rows(SQL["notes"], {"item": item})]

    def _move(
        self,
        name: str,
        item: str,
        sources: Iterable[str],
        status: str,
        event: str,
        details: dict[str, Any],
        *,
        token: int | None = None,
        note: dict[str, Any] | None = None,
    ) -> WorkItem:
        with self._db.transaction(name) as connection:
            was = item_in(connection, item)
            if was.status not in sources:
                raise invalid_transition(was, f"{event.removeprefix('work_item_')}")
            if token is not None and (
                was.status != "in_flight" or lease_in(connection, item).token != token
            ):
                raise lease_lost(connection, item)
            self._moved(connection, was, status, event, details, note)
            return item_in(connection, item)

    def _moved(
        self,
        connection: sqlite3.Connection,
        was: WorkItem,
        status: str,
        event: str,
        details: dict[str, Any],
        note: dict[str, Any] | None = None,
    ) -> None:
        if note:
            set_notes(connection, was.id, annotated(was.notes, note))
        values = {"item": was.id, "status": status}
        at, owner = connection.execute(SQL["move"], values).fetchone()
        details = {"status": status, "from": was.status} | details
        QUEUE.append_event(connection, event, details, actor=owner, item=was.id, ts=at)


class MirroredItem(NamedTuple):
    """A work item of another database, which is written here with the status that it has there."""

    id: str
    kind: str
    payload: dict[str, Any]
    owner: str


def mirror_item(
    connection: sqlite3.Connection, item: MirroredItem, at: int, status: str = ""
) -> None:
    """Add the item if it is missing; with a status, set that status as of `at`."""
    values = item._asdict() | {"payload": encode(item.payload), "at": at}
    connection.execute(SQL["mirror"], values)
    if status and item_in(connection, item.id).status != status:
        values |= {"status": status, "lease_ms": _MIRROR_LEASE_MS}
        if status == "in_flight":
            connection.execute(SQL["mirror_lease"], values)
        connection.execute(SQL["mirror_status"], values)


def _same_json(first: str, second: str) -> bool:
    if first == second:
        return True
    try:
        return _same(json.loads(first), json.loads(second))
    except (ValueError, RecursionError):
        return False


def _same(first: Any, second: Any) -> bool:
    """True if two JSON values are equal; in Python, 1 equals True."""
    match first, second:
        case dict(), dict():
            return first.keys() == second.keys() and all(_same(first[k], second[k]) for k in first)
        case list(), list():
            return len(first) == len(second) and all(map(_same, first, second))
    return bool(first == second) and isinstance(first, bool) == isinstance(second, bool)


def item_in(connection: sqlite3.Connection, item: str) -> WorkItem:
    row = connection.execute(SQL["item"], {"item": item}).fetchone()
    if row is None:
        raise NotFound(f"there is no work item {item}", hint="errands list shows what there is")
    return WorkItem(*row)


def set_notes(connection: sqlite3.Connection, item: str, notes: str | None) -> None:
    """Set the notes, if there are any; a separate statement lets a trigger keep each change."""
    if notes:
        connection.execute(SQL["set_notes"], {"item": item, "notes": notes})


def lease_in(connection: sqlite3.Connection, item: str) -> Lease:
    row = connection.execute(SQL["lease"], {"item": item}).fetchone()
    return Lease(row["token"], row["holder"], row["expires_at"], row["attempt"])


def claimed_in(connection: sqlite3.Connection, taken: Claim) -> ClaimedItem:
    row = connection.execute(SQL["held"], {"item": taken.item}).fetchone()
    return ClaimedItem(WorkItem(*row[:8]), Lease(*row[8:]))


def invalid_transition(item: WorkItem, what: str) -> PreconditionFailed:
    """Explain that the status does not allow the change; the hint names the next step."""
    message = f"{item.id} is {item.status} and cannot be {what}"
    return PreconditionFailed(message, hint=_next_step(item, what))


def _next_step(item: WorkItem, what: str) -> str:
    if item.status == "pending":
        if what in ("retried", "reopened"):
            return f"it waits already: errands claim --id {item.id} --owner OWNER"
        if what == "answered":
            return f"nothing was asked; to ask: errands park --id {item.id} --question TEXT"
        return f"claim it first: errands claim --id {item.id} --owner OWNER"
    if item.status == "in_flight":
        holder = item.owner_agent or "nobody"
        return f"{holder} has it; to take it away: errands release --id {item.id}"
    if item.status == "waiting_human":
        return f"answer it first: errands answer --id {item.id} --answer TEXT"
    return f"take it up again first: errands reopen --id {item.id}"


def not_claimable(connection: sqlite3.Connection, id: str) -> Exception:
    item = item_in(connection, id)
    if item.status == "in_flight":
        return in_use(id, lease_in(connection, id), QUEUE.now_ms(connection))
    return invalid_transition(item, "claimed")


def in_use(item: str, lease: Lease, now: int) -> InUse:
    left = max(0, lease.expires_at - now) // 1000
    return InUse(
        f"{item} is held by {lease.holder or 'nobody'} for {left} s more",
        hint=f"wait for it, or take it away: errands release --id {item}",
    )


def lease_lost(connection: sqlite3.Connection, id: str) -> InUse:
    item = item_in(connection, id)
    return InUse(
        f"the lease of {id} is lost: it is {item.status},"
        f" its owner is {item.owner_agent or 'nobody'}",
        hint="stop working on it; the changes of others stay",
    )
