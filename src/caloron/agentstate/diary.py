"""The diary of one agent: what happened, in order, never changed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from caloron.agentstate.file import QUEUE, SQL
from caloron.agentstate.records import Event
from caloron.errors import NotFound
from caloron.store.database import Database
from caloron.store.statements import load_statements

LOOKING = load_statements(Path(__file__).parent / "sql" / "looking.sql")


class Line(NamedTuple):
    """Something that happened elsewhere: its key there makes it one line here."""

    key: str
    ts: int
    type: str
    payload: dict[str, Any] | str
    actor: str | None = None
    item: str | None = None


class Diary:
    """The events of one agent's file."""

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
        """Write one line; None if a line with this key is there already.

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

    def copy(self, lines: Iterable[Line]) -> int:
        """Take over what happened elsewhere, all or nothing; how many lines were not here yet.

        Each has a key, so the same fact copied again is one line. A work item that is not known
        here is left out of its line.
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

    def tail(self, limit: int = 50) -> list[Event]:
        """The newest lines, the newest first."""
        return [Event(*row) for row in self._db.rows(LOOKING["tail"], {"limit": limit})]

    def since(self, ts: int) -> list[Event]:
        """Every line from this time on, in order."""
        return [Event(*row) for row in self._db.rows(LOOKING["since"], {"since": ts})]

    def of(self, item: str) -> list[Event]:
        """Every line about one errand, in order."""
        return [Event(*row) for row in self._db.rows(LOOKING["of_item"], {"item": item})]
