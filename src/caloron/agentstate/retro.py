"""`retros/2026-W46.md`: what one ISO week of an agent came to. A projection of its diary."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from caloron.agentstate.dashboard import SQL, cell, moment, span, table
from caloron.agentstate.file import open_file, there_in
from caloron.agentstate.records import TERMINAL
from caloron.agentstate.weeks import Week, last_week, week_named
from caloron.store.database import Database
from caloron.store.files import write_atomic

#: A week is compared with so many before it.
_EARLIER = 4
_MOST_FAILURES = 20
_MARK = "<!-- caloron "


class Figures(NamedTuple):
    """One week in numbers; times in ms, None where nothing was done."""

    label: str
    events: int
    created: int
    claimed: int
    outcomes: dict[str, int]
    whole: tuple[int, int, int] | None
    working: tuple[int, int, int] | None

    @property
    def failed_share(self) -> float | None:
        ended = self.outcomes["done"] + self.outcomes["failed"]
        return self.outcomes["failed"] / ended if ended else None


def write_weekly(
    where: Path, label: str | None = None, now: datetime | None = None
) -> tuple[Path, Path | None]:
    """Write the retro of a week; the second path is where somebody's edited text was kept."""
    week = week_named(label) if label is not None else last_week(now or datetime.now(UTC))
    db = open_file(there_in(where))
    try:
        text = retro(db, week)
    finally:
        db.close()
    path = where / "retros" / f"{week.label}.md"
    aside = _keep_edited(path)
    write_atomic(path, f"{text}{_MARK}{_digest(text)} -->\n".encode())
    return path, aside


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _keep_edited(path: Path) -> Path | None:
    """A text that is not as it was written belongs to whoever changed it."""
    try:
        found = path.read_text("utf-8", "replace")
    except FileNotFoundError:
        return None
    text, mark, digest = found.rpartition(_MARK)
    if mark and digest == f"{_digest(text)} -->\n":
        return None
    aside = path.with_name(f"{path.stem}.edited.md")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.stem}.edited-{number}.md")
    write_atomic(aside, path.read_bytes())
    return aside


def retro(db: Database, week: Week) -> str:
    """The whole page."""
    with db.snapshot() as connection:
        return "\n".join(_lines(connection, week)) + "\n"


def _lines(connection: sqlite3.Connection, week: Week) -> Iterator[str]:
    window = {"begins": week.begins, "ends": week.ends}
    now = figures(connection, week)
    yield f"# Retrospective {week.label}"
    yield ""
    yield f"_Window: {moment(week.begins)} to {moment(week.ends)}_"
    yield ""
    yield f"Total events: {now.events}"
    yield ""
    yield "## Events by type"
    yield ""
    types = connection.execute(SQL["events_by_type"], window).fetchall()
    yield from table(("Type", "Count"), [tuple(row) for row in types], "_No events._")
    yield from _throughput(now)
    yield from _failures(connection, window)
    yield from _trend(now, [figures(connection, week.earlier(n)) for n in range(1, _EARLIER + 1)])
    yield "## Top actors"
    yield ""
    actors = connection.execute(SQL["top_actors"], window).fetchall()
    yield from table(("Actor", "Events"), [tuple(row) for row in actors], "_Nobody._")


def figures(connection: sqlite3.Connection, week: Week) -> Figures:
    """The numbers of one week."""
    window = {"begins": week.begins, "ends": week.ends}
    types = {
        row["type"]: row["events"] for row in connection.execute(SQL["events_by_type"], window)
    }
    outcomes = dict.fromkeys(TERMINAL, 0)
    outcomes |= {row["status"]: row["items"] for row in connection.execute(SQL["outcomes"], window)}
    whole, working = [], []
    for row in connection.execute(SQL["times"], window):
        whole.append(row["whole"])
        if row["working"] is not None:
            working.append(row["working"])
    return Figures(
        week.label,
        sum(types.values()),
        types.get("work_item_created", 0),
        types.get("work_item_claimed", 0),
        outcomes,
        percentiles(whole),
        percentiles(working),
    )


def percentiles(values: Sequence[int]) -> tuple[int, int, int] | None:
    """The half, nine tenths and all of the values are at most this (nearest rank)."""
    if not values:
        return None
    ordered = sorted(values)
    last = len(ordered) - 1
    return ordered[last // 2], ordered[(9 * len(ordered) + 9) // 10 - 1], ordered[last]


def _throughput(now: Figures) -> Iterator[str]:
    yield from ("## Work item resolutions", "")
    rows: list[tuple[Any, ...]] = [(status, now.outcomes[status]) for status in TERMINAL]
    yield from table(("Outcome", "Count"), rows, "")
    yield f"Handed in: {now.created}. Claimed: {now.claimed}."
    yield ""
    times = [
        (what, *(span(value) for value in found))
        for what, found in (("handed in to done", now.whole), ("claimed to done", now.working))
        if found is not None
    ]
    yield from ("## Cycle time", "")
    yield from table(
        ("From", "Half within", "Nine tenths within", "Longest"), times, "_Nothing done._"
    )


def _failures(connection: sqlite3.Connection, window: dict[str, int]) -> Iterator[str]:
    yield from ("## Failures by kind", "")
    counts: dict[str, int] = {}
    shown: list[tuple[Any, ...]] = []
    for row in connection.execute(SQL["failures"], window):
        counts[row["kind"]] = counts.get(row["kind"], 0) + 1
        if len(shown) < _MOST_FAILURES:
            shown.append((row["kind"], row["id"], str(row["notes"] or "")[:120]))
    if not counts:
        yield from ("_None._", "")
        return
    yield " · ".join(f"{cell(kind)}: {count}" for kind, count in sorted(counts.items()))
    yield ""
    yield from table(("Kind", "Work item", "Why"), shown, "")
    left = sum(counts.values()) - len(shown)
    if left:
        yield from (f"_… and {left} more._", "")


def _trend(now: Figures, before: list[Figures]) -> Iterator[str]:
    yield from ("## Trend", "")
    rows = [
        (
            week.label, week.created, week.outcomes["done"], week.outcomes["failed"],
            None if week.failed_share is None else f"{week.failed_share:.0%}",
            None if week.whole is None else span(week.whole[0]),
        )
        for week in (now, *before)
    ]  # fmt: skip
    heads = ("Week", "Handed in", "Done", "Failed", "Failed of ended", "Half done within")
    yield from table(heads, rows, "")
