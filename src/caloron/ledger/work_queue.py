"""The work queue of a sprint as the engine uses it: claim, settle, interrupt."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from caloron.domain.model.effects import StartWork
from caloron.domain.model.facts import RunInterrupted, WorkEnded
from caloron.ledger.ledger import SQL, Ledger, append_facts, start_of
from caloron.store import log, queue
from caloron.store.queue import InFlight, LeaseLost

_MAX_EVENT_TEXT = 4000
#: The reason in the event that reopens work whose attempt left no result.
INTERRUPTED = "the attempt was interrupted"


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """Work that this engine may do as long as its token is the newest."""

    start: StartWork
    token: int
    #: The number of attempts started before.
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
            claim = queue.claim(
                connection,
                roles,
                holder=self.holder,
                lease_ms=self.lease_ms,
                cap=cap,
                scope=f"{self.sprint}/",
            )
        if claim is None:
            return None
        return Claimed(start=start_of(claim.payload), token=claim.token, attempt=claim.attempt)

    def has_pending(self, roles: Iterable[str]) -> bool:
        """True if work for these roles is pending. Cheaper than a claim."""
        with self.ledger.db.snapshot() as connection:
            return queue.has_pending(connection, roles, scope=f"{self.sprint}/")

    def interruption_waits(self, item: str) -> bool:
        """True if the next tick will learn that an attempt of this item was interrupted."""
        values = {"sprint": self.sprint, "prefix": f"{item}#"}
        return self.ledger.db.row(SQL["interruption_waits"], values) is not None

    def interruptions(self, item: str) -> int:
        """Return how often an attempt of this item left no result, under any engine."""
        row = self.ledger.db.row(SQL["interruptions"], {"item": item, "reason": INTERRUPTED})
        return int(row["times"]) if row else 0

    def in_flight(self) -> list[InFlight]:
        with self.ledger.db.snapshot() as connection:
            leases = queue.in_flight(connection)
        return [lease for lease in leases if lease.item.startswith(f"{self.sprint}/")]

    def lease(self, item: str) -> InFlight | None:
        return next((lease for lease in self.in_flight() if lease.item == item), None)

    def settle(self, fact: WorkEnded, token: int) -> bool:
        """Close the item and append the fact; False if the lease was lost."""
        status = "failed" if fact.internal_error or fact.exit_code else "done"
        try:
            with self.ledger.db.transaction("settle") as connection:
                queue.settle(connection, fact.item, token, status, fact.last_line)
                append_facts(connection, self.sprint, [fact])
                if fact.usage:
                    report = _agent_report(fact)
                    queue.append_event(connection, "agent_reported", report, item=fact.item)
        except LeaseLost as error:
            log.info(
                "the end of an attempt does not count", error=error, item=fact.item, task=fact.task
            )
            return False
        reason = (
            fact.internal_error or fact.limit_hit or fact.provider_message or fact.provider_error
        )
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
        """Reopen the item: its attempt was lost, not failed. False if the lease was lost.

        It is not claimed again before `until`, in seconds since 1970.
        """
        with self.ledger.db.transaction("interrupt") as connection:
            is_ours = any(
                lease.item == item and lease.token == token for lease in queue.in_flight(connection)
            )
            if is_ours:
                queue.reopen(connection, item, reason)
                if until:
                    queue.hold(connection, item, int(until * 1000))
                if cut:
                    append_facts(connection, self.sprint, [cut])
        if is_ours:
            log.warning("an attempt was interrupted and runs again", item=item, reason=reason)
        return is_ours

    def note(self, type: str, item: str, payload: dict[str, Any]) -> None:
        with self.ledger.db.transaction("note") as connection:
            queue.append_event(connection, type, payload, item=item)


def _agent_report(fact: WorkEnded) -> dict[str, Any]:
    """Return the answer and the usage of an agent as the event stores them."""
    return {
        "token": fact.token,
        "framework": fact.framework,
        "session": fact.session,
        "stop_reason": fact.stop_reason,
        "trouble": fact.provider_error,
        "detail": fact.provider_message,
        "text": fact.answer[-_MAX_EVENT_TEXT:],
        **msgspec.to_builtins(fact.usage),
    }


def result_of(lease: InFlight) -> dict[str, Any] | None:
    """Return the result that the shim wrote, if there is one."""
    result = json.loads(lease.result) if lease.result else None
    return result if isinstance(result, dict) else None
