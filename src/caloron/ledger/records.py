"""The ended sprints as later ones remember them; each is worked out once, and again if it changes.

A record is only ever a shortcut: one that is missing, or that other rules made, is worked out from
the facts by whoever looks.
"""

from __future__ import annotations

import sqlite3
from functools import cache
from hashlib import sha256
from pathlib import Path

import msgspec

from caloron.domain import analysis, budget, feedback, insight, learnings, retro, sprint
from caloron.domain.learnings import SprintRecord, record_of
from caloron.ledger import figures
from caloron.ledger.figures import REMEMBERED, figures_of
from caloron.ledger.ledger import Ledger
from caloron.store.statements import load_statements

_SQL = load_statements(Path(__file__).parent / "sql" / "records.sql")
_record_of = msgspec.json.Decoder(SprintRecord).decode

#: Records made in one transaction: nobody has to wait for long.
_AT_ONCE = 100


def ended_records(
    connection: sqlite3.Connection, last: int = REMEMBERED, *, believe: bool = True
) -> list[SprintRecord]:
    """The sprints that have ended, as the next ones remember them; 0: also the very old ones.

    `believe`: what was worked out before is taken as it is.
    """
    newest = connection.execute(figures.SQL["newest"]).fetchone()[0]
    values = {"after": newest - last if last else 0, "made_by": _made_by()}
    # A ledger that nobody wrote to since an upgrade has no place for records yet.
    known = believe and connection.execute(_SQL["has_records"]).fetchone()
    rows = connection.execute(_SQL["ended" if known else "ended_without_records"], values)
    found = (
        _record_of(row["record"]) if row["record"] else _worked_out(connection, row["id"])
        for row in rows.fetchall()
    )
    return [record for record in found if record.teaches]


def keep_records(ledger: Ledger) -> None:
    """Write down what ended sprints came to, where that is missing."""
    while True:
        with ledger.db.transaction("records") as connection:
            values = {"made_by": _made_by(), "limit": _AT_ONCE}
            missing = [row["id"] for row in connection.execute(_SQL["missing"], values)]
            for name in missing:
                record = msgspec.json.encode(_worked_out(connection, name))
                kept = {"sprint": name, "made_by": _made_by(), "data": record}
                connection.execute(_SQL["keep"], kept)
        if len(missing) < _AT_ONCE:
            return


def _worked_out(connection: sqlite3.Connection, name: str) -> SprintRecord:
    found = figures_of(connection, name)
    return record_of(found.state, found.runs, found.state.sprint.ended_at or 0.0)


@cache
def _made_by() -> str:
    """Which rules make a record: a Caloron with others must not believe it."""
    parts = (analysis, budget, feedback, figures, insight, learnings, retro, sprint)
    texts = [Path(str(part.__file__)).read_bytes() for part in parts]
    return sha256(b"\0".join(texts)).hexdigest()[:16]


def wrong_records(connection: sqlite3.Connection) -> list[str]:
    """The sprints whose record, made by these rules, is not what their facts come to."""
    if not connection.execute(_SQL["has_records"]).fetchone():
        return []
    kept = connection.execute(_SQL["kept"], {"made_by": _made_by()}).fetchall()
    return [
        row["sprint"]
        for row in kept
        if bytes(row["data"]) != msgspec.json.encode(_worked_out(connection, row["sprint"]))
    ]


def forget_records(ledger: Ledger, sprints: list[str]) -> None:
    """Take records away, so that they are worked out anew."""
    with ledger.db.transaction("records") as connection:
        for sprint in sprints:
            connection.execute(_SQL["forget"], {"sprint": sprint})
