"""The queue of one agent: handed in, claimed with a lease, ended, and never done twice by accident.

Every change is one transaction together with the event that tells of it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from caloron.agentstate.file import QUEUE, SQL
from caloron.agentstate.notes import annotated, encode, resolved
from caloron.agentstate.records import (
    TERMINAL,
    Enqueued,
    Errand,
    Held,
    Lease,
    Replayed,
)
from caloron.agentstate.rows import (
    errand_in,
    held_by,
    held_in,
    is_held,
    lease_in,
    lost,
    not_claimable,
    not_from,
    refuse_ended,
    set_notes,
    unknown,
)
from caloron.errors import HeldByAnother, PreconditionFailed, UsageError
from caloron.store.database import Database
from caloron.store.queue import LeaseLost

#: Ten minutes, which is also what a program that knows no leases gets.
LEASE_MS = 600_000
MAX_ATTEMPTS = 3


class Errands:
    """The errands of one agent's file."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def get(self, item: str) -> Errand:
        """One errand as it is now."""
        row = self._db.row(SQL["item"], {"item": item})
        if row is None:
            raise unknown(item)
        return Errand(*row)

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
        """Hand in an errand; one of the same id that is there already stays as it is.

        A payload that is text is stored as it is; anything else becomes JSON.
        """
        text = payload if isinstance(payload, str) else encode(payload)
        with self._db.transaction("enqueue") as connection:
            known = connection.execute(SQL["item"], {"item": item}).fetchone()
            if known is not None:
                return self._again(connection, Errand(*known), kind, text)
            not_before = QUEUE.now_ms(connection) + delay_ms if delay_ms else 0
            QUEUE.enqueue(
                connection, item, kind, text, owner=owner, status=status,
                priority=priority, not_before=not_before,
            )  # fmt: skip
            set_notes(connection, item, notes)
            return Enqueued(True, errand_in(connection, item))

    def _again(
        self, connection: sqlite3.Connection, known: Errand, kind: str, payload: str
    ) -> Enqueued:
        """Delivered again: that is usual. Delivered otherwise: the diary says so, once."""
        differs = [] if kind == known.kind else ["kind"]
        if not _same_json(payload, known.payload):
            differs.append("payload")
        if differs:
            from hashlib import sha256

            # A payload may be long, and this is part of a primary key.
            digest = sha256(f"{kind}\0{payload}".encode("utf-8", "replace")).hexdigest()
            key = f"differs:{known.id}:{digest}"
            told = {"differs": differs, "kind": kind, "payload": payload}
            QUEUE.append_event(connection, "work_item_conflict", told, item=known.id, key=key)
        return Enqueued(False, known, tuple(differs))

    def claim(self, item: str, owner: str, *, lease_ms: int = LEASE_MS) -> Held:
        """Take this errand; refused while somebody else, or the same owner, holds it."""
        with self._db.transaction("claim") as connection:
            taken = QUEUE.claim_item(connection, item, holder=owner, lease_ms=lease_ms)
            if taken is None:
                raise not_claimable(connection, item)
            return held_in(connection, taken)

    def claim_next(
        self,
        owner: str,
        *,
        kinds: Sequence[str] = (),
        lease_ms: int = LEASE_MS,
        max_attempts: int = 0,
    ) -> Held | None:
        """Take the most urgent errand that waits, or whose holder gives no sign any more.

        With `max_attempts`, what was claimed so often and left alone each time fails instead.
        """
        with self._db.transaction("claim") as connection:
            if max_attempts:
                self._give_up(connection, kinds, max_attempts)
            taken = QUEUE.claim(connection, kinds, holder=owner, lease_ms=lease_ms, cap=0)
            return None if taken is None else held_in(connection, taken)

    def _give_up(self, connection: sqlite3.Connection, kinds: Sequence[str], most: int) -> None:
        values = {"kinds": json.dumps(list(kinds)), "most": most}
        for row in connection.execute(SQL["worn_out"], values).fetchall():
            said = f"given up: claimed {most} times, and nobody ever ended it"
            was = errand_in(connection, row["item"])
            set_notes(connection, was.id, resolved(was.notes, said))
            QUEUE.settle(connection, was.id, None, "failed", said, was.owner_agent)

    def renew(self, item: str, token: int, *, lease_ms: int = LEASE_MS) -> Lease:
        """Say that the holder lives."""
        with self._db.transaction("renew") as connection:
            try:
                QUEUE.renew(connection, item, token, lease_ms, active=True)
            except LeaseLost:
                raise lost(connection, item) from None
            return lease_in(connection, item)

    def release(self, item: str, *, token: int | None = None, reason: str = "") -> Errand:
        """Give an errand back unfinished; without a token, whoever holds it."""
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
    ) -> Errand:
        """End an errand as done, failed or cancelled.

        With a token or an owner only if that is who holds it. Notes are added, never replaced.
        """
        if status not in TERMINAL:
            raise UsageError(f"an errand cannot end as {status!r}", hint=f"one of {TERMINAL}")
        with self._db.transaction("resolve") as connection:
            was = errand_in(connection, item)
            refuse_ended(was, "resolved")
            if owner is not None and was.owner_agent != owner:
                raise HeldByAnother(f"{item} belongs to {was.owner_agent or 'nobody'}, not {owner}")
            text = resolved(was.notes, notes)
            set_notes(connection, item, text)
            try:
                at = QUEUE.settle(connection, item, token, status, notes, was.owner_agent)
            except LeaseLost:
                raise lost(connection, item) from None
        return was._replace(status=status, updated_at=at, notes=text or was.notes)

    def annotate(self, item: str, patch: dict[str, Any]) -> Errand:
        """Put these keys into the notes, whatever state the errand is in."""
        with self._db.transaction("annotate") as connection:
            was = errand_in(connection, item)
            values = {"item": item, "notes": annotated(was.notes, patch)}
            at, owner = connection.execute(SQL["annotate"], values).fetchone()
            told = {"keys": list(patch)}
            QUEUE.append_event(
                connection, "work_item_annotated", told, actor=owner, item=item, ts=at
            )
            return errand_in(connection, item)

    def park(self, item: str, question: str, *, token: int | None = None) -> Errand:
        """Leave an errand to a person, with what they have to answer."""
        return self._move(
            "park", item, ("pending", "in_flight"), "waiting_human", "work_item_parked",
            {"question": question}, token=token, note={"question": question},
        )  # fmt: skip

    def answer(self, item: str, answer: str) -> Errand:
        """A person has answered: the errand waits for its agent again."""
        return self._move(
            "answer", item, ("waiting_human",), "pending", "work_item_answered",
            {"answer": answer}, note={"answer": answer},
        )  # fmt: skip

    def reopen(self, item: str, reason: str = "") -> Errand:
        """Take up again what has ended, however it did."""
        return self._move(
            "reopen", item, TERMINAL, "pending", "work_item_reopened", {"reason": reason or None}
        )

    def retry(
        self, item: str, *, max_attempts: int = MAX_ATTEMPTS, delay_ms: int = 0, reason: str = ""
    ) -> Errand:
        """Try again what failed or whose holder is gone, unless that was done often enough."""
        with self._db.transaction("retry") as connection:
            was = errand_in(connection, item)
            lease, now = lease_in(connection, item), QUEUE.now_ms(connection)
            if was.status == "in_flight" and lease.expires_at > now:
                raise held_by(item, lease, now)
            if was.status not in ("failed", "in_flight"):
                raise not_from(was, "retried")
            if lease.attempt >= max_attempts:
                raise PreconditionFailed(
                    f"{item} was tried {lease.attempt} times already",
                    hint=f"allow more with --max-attempts, or: errands reopen --id {item}",
                )
            told = {"reason": reason or "retry", "attempt": lease.attempt}
            self._moved(connection, was, "pending", "work_item_reopened", told)
            connection.execute(SQL["not_before"], {"item": item, "delay_ms": delay_ms})
            return errand_in(connection, item)

    def replay(
        self, *, threshold_ms: int = 0, kind: str | None = None, owner: str | None = None
    ) -> list[Replayed]:
        """What must be taken up after a start: all that is due, and what no holder renews.

        A lease that still holds protects an errand whatever the threshold; changes nothing.
        """
        values = {"threshold_ms": threshold_ms, "kind": kind, "owner": owner}
        return [
            Replayed(Errand(*row[:8]), _why(row["status"]), row["attempt"])
            for row in self._db.rows(SQL["replay"], values)
        ]

    def lease(self, item: str) -> Lease:
        """Who holds an errand."""
        with self._db.snapshot() as connection:
            errand_in(connection, item)
            return lease_in(connection, item)

    def earlier_notes(self, item: str) -> list[tuple[int, str]]:
        """Every text that stood in the notes before, with the time when it was written over."""
        return [(row["at"], row["notes"]) for row in self._db.rows(SQL["notes"], {"item": item})]

    def _move(
        self,
        name: str,
        item: str,
        sources: Iterable[str],
        status: str,
        event: str,
        told: dict[str, Any],
        *,
        token: int | None = None,
        note: dict[str, Any] | None = None,
    ) -> Errand:
        with self._db.transaction(name) as connection:
            was = errand_in(connection, item)
            if was.status not in sources:
                raise not_from(was, f"{event.removeprefix('work_item_')}")
            if token is not None and not is_held(connection, was, token):
                raise lost(connection, item)
            self._moved(connection, was, status, event, told, note)
            return errand_in(connection, item)

    def _moved(
        self,
        connection: sqlite3.Connection,
        was: Errand,
        status: str,
        event: str,
        told: dict[str, Any],
        note: dict[str, Any] | None = None,
    ) -> None:
        if note:
            set_notes(connection, was.id, annotated(was.notes, note))
        values = {"item": was.id, "status": status}
        at, owner = connection.execute(SQL["move"], values).fetchone()
        told = {"status": status, "from": was.status} | told
        QUEUE.append_event(connection, event, told, actor=owner, item=was.id, ts=at)


def _why(status: str) -> str:
    return "pending" if status == "pending" else "stale"


def _same_json(one: str, other: str) -> bool:
    if one == other:
        return True
    try:
        return _same(json.loads(one), json.loads(other))
    except (ValueError, RecursionError):
        return False


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal; for Python 1 is also True."""
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
        case list(), list():
            return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
