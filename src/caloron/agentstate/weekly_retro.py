"""`retros/2026-W46.md`: the summary of one ISO week, made from the agent's events."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from caloron.agentstate.dashboard import SQL, cell, format_time, span, table
from caloron.agentstate.database import open_database, require_database
from caloron.agentstate.records import TERMINAL
from caloron.errors import CaloronError
from caloron.store.database import Database
from caloron.store.files import write_atomic

_LABEL = re.compile(r"(\d{4})-W(\d{2})")


class Week(NamedTuple):
    """One ISO week: from Monday 00:00 UTC to the next."""

    monday: date

    @property
    def label(self) -> str:
        return f"{self.monday:%G-W%V}"

    @property
    def window(self) -> dict[str, int]:
        """The first millisecond, and that of the next week."""
        next_monday = self.monday + timedelta(weeks=1)
        return {"begins": _midnight(self.monday), "ends": _midnight(next_monday)}

    def earlier(self, weeks: int) -> Week:
        return Week(self.monday - timedelta(weeks=weeks))


def _midnight(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000)


def week_of(day: date) -> Week:
    """Return the week of a day."""
    return Week(day - timedelta(days=day.weekday()))


def week_named(label: str) -> Week:
    """Return the week of a label; refuse a week that no year has."""
    match = _LABEL.fullmatch(label)
    try:
        # The weeks around it must have days too.
        if match is None or not 1970 <= int(match[1]) < 9999:
            raise ValueError(label)
        return Week(date.fromisocalendar(int(match[1]), int(match[2]), 1))
    except (ValueError, OverflowError):
        raise CaloronError(
            f"there is no week {label[:40]!r}", hint="write it as 2026-W46; most years have 52"
        ) from None


def last_week(now: datetime) -> Week:
    """Return the last week that is over."""
    return week_of(now.astimezone(UTC).date() - timedelta(weeks=1))


#: The number of earlier weeks in the trend.
_EARLIER = 4
_MOST_FAILURES = 20
_MARK = "<!-- caloron "


class Figures(NamedTuple):
    """The numbers of one week; times in ms, None where nothing was done."""

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


def write_weekly(agent_dir: Path, label: str | None = None) -> tuple[Path, Path | None]:
    """Write the retro of a week; the second path is that of a kept edited text."""
    week = week_named(label) if label is not None else last_week(datetime.now(UTC))
    db = open_database(require_database(agent_dir))
    try:
        text = retro(db, week)
    finally:
        db.close()
    path = agent_dir / "retros" / f"{week.label}.md"
    aside = _keep_edited(path)
    write_atomic(path, f"{text}{_MARK}{_digest(text)} -->\n".encode())
    return path, aside


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _keep_edited(path: Path) -> Path | None:
    """Keep a text that a person has edited."""
    try:
        page = path.read_text("utf-8", "replace")
    except FileNotFoundError:
        return None
    text, mark, digest = page.rpartition(_MARK)
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
    """Return the page."""
    with db.snapshot() as connection:
        return "\n".join(_lines(connection, week)) + "\n"


def _lines(connection: sqlite3.Connection, week: Week) -> Iterator[str]:
    window, now = week.window, figures(connection, week)
    times = " to ".join(map(format_time, window.values()))
    yield from (f"# Retrospective {week.label}", "", f"_Window: {times}_", "")
    yield from (f"Total events: {now.events}", "", "## Events by type", "")
    types = connection.execute(SQL["events_by_type"], window).fetchall()
    yield from table(("Type", "Count"), [tuple(row) for row in types], "_No events._")
    yield from _throughput(now)
    yield from _failures(connection, window)
    yield from _trend(now, [figures(connection, week.earlier(n)) for n in range(1, _EARLIER + 1)])
    yield from ("## Top actors", "")
    actors = connection.execute(SQL["top_actors"], window).fetchall()
    yield from table(("Actor", "Events"), [tuple(row) for row in actors], "_Nobody._")


def figures(connection: sqlite3.Connection, week: Week) -> Figures:
    """Return the numbers of one week."""
    window = week.window
    types = {
        row["type"]: row["events"] for row in connection.execute(SQL["events_by_type"], window)
    }
    outcomes = dict.fromkeys(TERMINAL, 0)
    outcomes |= {row["status"]: row["items"] for row in connection.execute(SQL["outcomes"], window)}
    times = connection.execute(SQL["times"], window).fetchall()
    return Figures(
        week.label,
        sum(types.values()),
        types.get("work_item_created", 0),
        types.get("work_item_claimed", 0),
        outcomes,
        percentiles([row["whole"] for row in times]),
        percentiles([row["working"] for row in times if row["working"] is not None]),
    )


def percentiles(values: Sequence[int]) -> tuple[int, int, int] | None:
    """Return the median, the 90th percentile and the maximum (nearest rank)."""
    if not values:
        return None
    ordered = sorted(values)
    last = len(ordered) - 1
    return ordered[last // 2], ordered[(9 * len(ordered) + 9) // 10 - 1], ordered[last]


def _throughput(now: Figures) -> Iterator[str]:
    yield from ("## Work item resolutions", "")
    rows: list[tuple[Any, ...]] = [(status, now.outcomes[status]) for status in TERMINAL]
    yield from table(("Outcome", "Count"), rows, "")
    yield from (f"Handed in: {now.created}. Claimed: {now.claimed}.", "")
    times = [
        (what, *map(span, values))
        for what, values in (("handed in to done", now.whole), ("claimed to done", now.working))
        if values is not None
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
    yield from (" · ".join(f"{cell(kind)}: {counts[kind]}" for kind in sorted(counts)), "")
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
