"""The engine's side of the work queue: claim, settle, and what became of an attempt."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from caloron.domain.actions import StartWork
from caloron.domain.facts import RunInterrupted, WorkEnded
from caloron.ledger.ledger import SQL, Ledger, start_of, tell
from caloron.store import log, queue
from caloron.store.queue import InFlight, LeaseLost

_TEXT_IN_DIARY = 4000
#: Why work whose attempt left no result is done again.
INTERRUPTED = "the attempt was interrupted"


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """Work that this engine may do, as long as the token is the newest."""

    start: StartWork
    token: int
    #: Attempts that were started before.
    attempt: int

    @property
    def item(self) -> str:
        return self.start.work.item


class WorkQueue:
    """The queue of one sprint."""

    def __init__(self, ledger: Ledger, sprint: str, *, holder: str, lease_ms: int) -> None:
        self.ledger = ledger
        self.sprint = sprint
        self.holder = holder
        self.lease_ms = lease_ms

    def claim(self, roles: Iterable[str], cap: int) -> Claimed | None:
        with self.ledger.db.transaction("claim") as connection:
            found = queue.claim(
                connection,
                roles,
                holder=self.holder,
                lease_ms=self.lease_ms,
                cap=cap,
                scope=f"{self.sprint}/",
            )
        if found is None:
            return None
        return Claimed(start=start_of(found.payload), token=found.token, attempt=found.attempt)

    def has_pending(self, roles: Iterable[str]) -> bool:
        """Whether work of this sprint for these roles waits: a look is cheaper than a claim."""
        with self.ledger.db.snapshot() as connection:
            return queue.has_pending(connection, roles, scope=f"{self.sprint}/")

    def interruption_waits(self, item: str) -> bool:
        """Whether a tick has yet to learn that an attempt of this item was interrupted."""
        values = {"sprint": self.sprint, "prefix": f"{item}#"}
        return self.ledger.db.row(SQL["interruption_waits"], values) is not None

    def interruptions(self, item: str) -> int:
        """How often an attempt of this item left no result, whichever engine ran it."""
        row = self.ledger.db.row(SQL["interruptions"], {"item": item, "reason": INTERRUPTED})
        return int(row["times"]) if row else 0

    def in_flight(self) -> list[InFlight]:
        with self.ledger.db.snapshot() as connection:
            held = queue.in_flight(connection)
        return [lease for lease in held if lease.item.startswith(f"{self.sprint}/")]

    def lease(self, item: str) -> InFlight | None:
        return next((lease for lease in self.in_flight() if lease.item == item), None)

    def settle(self, fact: WorkEnded, token: int) -> bool:
        """Close the item and tell the tick how it ended; False if the lease was lost."""
        status = "failed" if fact.fault or fact.exit_code else "done"
        try:
            with self.ledger.db.transaction("settle") as connection:
                queue.settle(connection, fact.item, token, status, fact.last_line)
                tell(connection, self.sprint, [fact])
                if fact.usage:
                    told = _reported(fact)
                    queue.append_event(connection, "agent_reported", told, item=fact.item)
        except LeaseLost as error:
            log.info(
                "the end of an attempt does not count", error=error, item=fact.item, task=fact.task
            )
            return False
        reason = fact.fault or fact.over or fact.detail or fact.trouble
        write = log.warning if reason or status == "failed" else log.info
        write(
            "an attempt ended",
            item=fact.item,
            task=fact.task,
            exit_code=fact.exit_code,
            reason=reason or fact.last_line,
        )
        return True

    def interrupt(
        self,
        item: str,
        token: int,
        reason: str,
        cut: RunInterrupted | None = None,
        *,
        until: float = 0.0,
    ) -> bool:
        """Give the item back: the attempt was lost, not failed. False if others hold it.

        It is not claimed again before `until`, in seconds since 1970.
        """
        with self.ledger.db.transaction("interrupt") as connection:
            held = [
                lease
                for lease in queue.in_flight(connection)
                if lease.item == item and lease.token == token
            ]
            if held:
                queue.reopen(connection, item, reason)
                if until:
                    queue.hold(connection, item, int(until * 1000))
                if cut:
                    tell(connection, self.sprint, [cut])
        if held:
            log.warning("an attempt was interrupted and runs again", item=item, reason=reason)
        return bool(held)

    def note(self, type: str, item: str, payload: dict[str, Any]) -> None:
        """Write one line about an item into the diary."""
        with self.ledger.db.transaction("note") as connection:
            queue.append_event(connection, type, payload, item=item)


def _reported(fact: WorkEnded) -> dict[str, Any]:
    """What an agent said and used, as the diary keeps it."""
    return {
        "token": fact.token,
        "framework": fact.framework,
        "session": fact.session,
        "stop_reason": fact.stop_reason,
        "trouble": fact.trouble,
        "detail": fact.detail,
        "text": fact.answer[-_TEXT_IN_DIARY:],
        **msgspec.to_builtins(fact.usage),
    }


def result_of(lease: InFlight) -> dict[str, Any] | None:
    """What the shim wrote about the attempt, if it got that far."""
    found = json.loads(lease.result) if lease.result else None
    return found if isinstance(found, dict) else None
