"""The event log of one agent, append-only, and the times that people write."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

from caloron.agentstate.database import QUEUE, READING, SQL
from caloron.agentstate.records import Event
from caloron.errors import CaloronError, NotFound
from caloron.store.database import Database

#: As agent-state takes them too; a time without a zone is local.
_FORMS = tuple(
    f"{day}{time}"
    for day in ("%b %d %Y", "%b %d, %Y", "%d %b %Y", "%Y/%m/%d", "%B %d %Y", "%B %d, %Y")
    for time in ("", " %H:%M", " %H:%M:%S")
)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


class ExternalEvent(NamedTuple):
    """An event of another system; its key there makes it one event here."""

    key: str
    ts: int
    type: str
    payload: dict[str, Any] | str
    actor: str | None = None
    item: str | None = None


class EventLog:
    """The events in one agent's database."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def append(
        self,
        type: str,
        payload: dict[str, Any] | str,
        *,
        actor: str | None = None,
        item: str | None = None,
        key: str = "",
        ts: int | None = None,
    ) -> Event | None:
        """Append one event; None if an event with this key exists.

        A payload that is text is JSON, and is stored as it is.
        """
        with self._db.transaction("append") as connection:
            if item and connection.execute(SQL["item"], {"item": item}).fetchone() is None:
                raise NotFound(f"there is no work item {item}", hint="leave --work-item-id out")
            if not QUEUE.append_event(
                connection, type, payload, actor=actor, item=item, key=key, ts=ts
            ):
                return None
            (newest,) = connection.execute("SELECT last_insert_rowid()").fetchone()
            return Event(*connection.execute(SQL["event_by_id"], {"id": newest}).fetchone())

    def copy(self, lines: Iterable[ExternalEvent]) -> int:
        """Copy events of another system, all or none; return the number of new ones.

        An event with a known key is skipped. A work item that is unknown here is left out of its
        event.
        """
        added = 0
        with self._db.transaction("copy") as connection:
            for line in lines:
                known = connection.execute(SQL["item"], {"item": line.item}).fetchone()
                added += QUEUE.append_event(
                    connection,
                    line.type,
                    line.payload,
                    actor=line.actor,
                    item=line.item if known else None,
                    key=line.key,
                    ts=line.ts,
                )
        return added

    def since(self, ts: int) -> list[Event]:
        """Return every event from this time on, in order."""
        return [Event(*row) for row in self._db.rows(READING["since"], {"since": ts})]

    def of(self, item: str) -> list[Event]:
        """Return every event about a work item, in order."""
        return [Event(*row) for row in self._db.rows(READING["of_item"], {"item": item})]


def parse_time(text: str) -> int:
    """Parse ms since 1970, or a text; a day begins in UTC, a time without a zone is local."""
    if text.isascii() and text.isdigit():
        return min(int(text[:20]), 2**62)
    try:
        time = datetime.fromisoformat(text)
        if _DAY.fullmatch(text):
            time = time.replace(tzinfo=UTC)
        return int(time.timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        # Another form of a time, which the next lines try.
        pass
    for form in _FORMS:
        with suppress(ValueError, OverflowError, OSError):
            # The next form may fit.
            return int(datetime.strptime(text, form).timestamp() * 1000)  # noqa: DTZ007 - local
    from email.utils import parsedate_to_datetime

    try:
        return int(parsedate_to_datetime(text).timestamp() * 1000)
    except (ValueError, TypeError, OverflowError, OSError):
        raise CaloronError(
            f"{text[:60]!r} is no time", hint="write 2026-11-16T08:00:00Z, or ms since 1970"
        ) from None
