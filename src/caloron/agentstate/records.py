"""The records of an agent's database, named as its columns, and the notes of a work item."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

STATUSES = ("pending", "in_flight", "waiting_human", "done", "failed", "cancelled")
TERMINAL = ("done", "failed", "cancelled")
OPEN = ("pending", "in_flight", "waiting_human")


class WorkItem(NamedTuple):
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
    """One row of `events`."""

    id: int
    ts: int
    type: str
    actor: str | None
    work_item_id: str | None
    payload: str


class Lease(NamedTuple):
    """The claim of a work item: who has it, until when, and the number of the attempt."""

    token: int
    holder: str
    expires_at: int
    attempt: int


class ClaimedItem(NamedTuple):
    """A work item that was claimed, and its lease."""

    item: WorkItem
    lease: Lease


class Enqueued(NamedTuple):
    """The result of an enqueue."""

    inserted: bool
    item: WorkItem
    #: The fields in which it differs from the known item of the same id.
    differs: tuple[str, ...] = ()


class Replayed(NamedTuple):
    """A work item to take up after a start, and how often it was claimed."""

    item: WorkItem
    #: `pending`: it is not claimed; `stale`: its lease is over.
    why: str
    attempt: int


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
#: The key for plain text from before the first annotation.
TEXT = "text"
#: The key for the words of a resolution beside other notes.
RESOLUTION = "resolution"


def encode(value: Any) -> str:
    """Encode JSON as agent-state does: without spaces, and not escaped to ASCII."""
    text = _encode(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            # A lone surrogate can be escaped in JSON but not stored as UTF-8.
            return json.dumps(value, separators=(",", ":"))
    return text


def base_of(notes: str | None) -> dict[str, Any]:
    """Return the notes as an object, to which annotations are added."""
    if not notes:
        return {}
    try:
        data = json.loads(notes)
    except (ValueError, RecursionError):
        return {TEXT: notes}
    return data if isinstance(data, dict) else {TEXT: notes}


def annotated(notes: str | None, patch: dict[str, Any]) -> str:
    """Return the notes with these keys; a known key gets the new value."""
    return encode(base_of(notes) | patch)


def resolved(notes: str | None, words: str) -> str | None:
    """Return the notes after a resolution with these words; None: unchanged."""
    if not words or words == notes:
        return None
    return annotated(notes, {RESOLUTION: words}) if notes else words
