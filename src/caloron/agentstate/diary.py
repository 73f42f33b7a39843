"""The diary of one agent: what happened, in order, never changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from caloron.agentstate.file import QUEUE, SQL
from caloron.agentstate.records import Event
from caloron.errors import NotFound
from caloron.store.database import Database
from caloron.store.statements import load_statements

LOOKING = load_statements(Path(__file__).parent / "sql" / "looking.sql")


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

    def tail(self, limit: int = 50) -> list[Event]:
        """The newest lines, the newest first."""
        return [Event(*row) for row in self._db.rows(LOOKING["tail"], {"limit": limit})]

    def since(self, ts: int) -> list[Event]:
        """Every line from this time on, in order."""
        return [Event(*row) for row in self._db.rows(LOOKING["since"], {"since": ts})]

    def of(self, item: str) -> list[Event]:
        """Every line about one errand, in order."""
        return [Event(*row) for row in self._db.rows(LOOKING["of_item"], {"item": item})]
