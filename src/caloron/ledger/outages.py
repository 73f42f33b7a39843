"""What the ledger remembers of a forge that cannot be asked now, for those who look."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING

from caloron.domain.outages import Outage

if TYPE_CHECKING:
    from caloron.ledger.ledger import Ledger


def keep_outage(ledger: Ledger, sprint: str, outage: Outage) -> None:
    """Remember it, and write it into the diary when it begins."""
    from caloron.ledger.ledger import SQL
    from caloron.store import queue

    with ledger.db.transaction("outage") as connection:
        connection.execute(SQL["put_kv"], {"key": _key(sprint), "value": json.dumps(outage)})
        payload = {"sprint": sprint, "what": str(outage), "detail": outage.detail}
        kind = "quota" if outage.until is not None else "silent"
        key = f"forge_{kind}/{sprint}/{outage.since}"
        queue.append_event(connection, f"forge_{kind}", payload, key=key)


def clear_outage(ledger: Ledger, sprint: str) -> None:
    """It is over."""
    from caloron.ledger.ledger import SQL
    from caloron.store import queue

    with ledger.db.transaction("outage") as connection:
        connection.execute(SQL["put_kv"], {"key": _key(sprint), "value": ""})
        queue.append_event(connection, "forge_answers", {"sprint": sprint})


def read_outage(connection: sqlite3.Connection, sprint: str) -> Outage | None:
    """The outage that lasts, as far as the last engine knew."""
    row = connection.execute("SELECT value FROM kv WHERE key = ?", (_key(sprint),)).fetchone()
    return Outage(*json.loads(row["value"])) if row and row["value"] else None


def _key(sprint: str) -> str:
    return f"forge_outage/{sprint}"
