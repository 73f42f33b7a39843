"""What an agent's file holds, as Python has it; the names are those of the columns."""

from __future__ import annotations

from typing import NamedTuple

STATUSES = ("pending", "in_flight", "waiting_human", "done", "failed", "cancelled")
TERMINAL = ("done", "failed", "cancelled")
OPEN = ("pending", "in_flight", "waiting_human")


class Errand(NamedTuple):
    """One row of `work_items`; payload and notes are text, times are in ms since 1970."""

    id: str
    kind: str
    payload: str
    status: str
    owner_agent: str | None
    created_at: int
    updated_at: int
    notes: str | None


class Event(NamedTuple):
    """One line of the diary."""

    id: int
    ts: int
    type: str
    actor: str | None
    work_item_id: str | None
    payload: str


class Lease(NamedTuple):
    """Who works on an errand, until when, and the how manieth time somebody does."""

    token: int
    holder: str
    expires_at: int
    attempt: int


class Held(NamedTuple):
    """An errand that was claimed, and the right to work on it."""

    errand: Errand
    lease: Lease


class Enqueued(NamedTuple):
    """What became of an errand that was handed in."""

    inserted: bool
    errand: Errand
    #: In what it differs from the one of the same id that was there already.
    differs: tuple[str, ...] = ()


class Replayed(NamedTuple):
    """An errand that somebody must take up again, and how often that was tried."""

    errand: Errand
    #: `pending`: nobody has it; `stale`: whoever had it gives no sign.
    why: str
    attempt: int
