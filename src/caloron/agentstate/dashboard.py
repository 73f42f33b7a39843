"""`dashboard.md`: the state of an agent, made from its database; deleting it loses nothing."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from caloron.agentstate.database import QUEUE, READING, open_database, require_database
from caloron.agentstate.records import STATUSES
from caloron.store.database import Database, load_statements
from caloron.store.files import write_atomic

SQL = load_statements(Path(__file__).parent / "sql" / "pages.sql")
_TITLE = "# AgentState dashboard"
_GENERATED = re.compile(r"_Generated: (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)_")
#: The beginning of the page before the first one is made.
NOT_YET = "_Nothing was generated yet"
_MOST_OPEN = 50
_MOST_EVENTS = 25
#: A pending work item without a change for this long is called old.
_OLD_MS = 24 * 3600 * 1000
NOTHING = "\u2014"


def regenerate(agent_dir: Path) -> Path:
    """Write the dashboard of an agent's folder."""
    db = open_database(require_database(agent_dir))
    try:
        return write_dashboard(db, agent_dir)
    finally:
        db.close()


def write_dashboard(db: Database, agent_dir: Path) -> Path:
    path = agent_dir / "dashboard.md"
    write_atomic(path, dashboard(db).encode())
    return path


def dashboard(db: Database) -> str:
    """Return the page, from one snapshot."""
    with db.snapshot() as connection:
        now = QUEUE.now_ms(connection)
        return "\n".join(_lines(connection, now)) + "\n"


def wrong_in(connection: sqlite3.Connection, page: bytes) -> str:
    """Compare a page with one made for the time in it; return the difference, or nothing.

    `older …` means that the page was right once.
    """
    lines = page.decode("utf-8", "replace").splitlines()
    head = lines[2] if lines[:2] == [_TITLE, ""] and len(lines) > 2 else ""
    if head.startswith(NOT_YET):
        return ""
    if (generated := _GENERATED.fullmatch(head)) is None:
        return "somebody else's text"
    from caloron.agentstate.events import parse_time

    now = parse_time(generated[1])
    if "\n".join(_lines(connection, now)) + "\n" == page.decode("utf-8", "replace"):
        return ""
    (last,) = connection.execute(SQL["last_change"]).fetchone()
    return "older than its queue" if (last or 0) > now else "not what its queue makes"


def _lines(connection: sqlite3.Connection, now: int) -> Iterator[str]:
    yield from (_TITLE, "", f"_Generated: {format_time(now)}_", "")
    yield from _by_kind(connection)
    yield from _open(connection, now)
    yield from (f"## Recent events (last {_MOST_EVENTS})", "")
    events = connection.execute(READING["tail"], {"limit": _MOST_EVENTS}).fetchall()
    rows = [(format_time(e["ts"]), e["type"], e["actor"], e["work_item_id"]) for e in events]
    yield from table(("Time", "Type", "Actor", "Work item"), rows, "_No events yet._")


def _by_kind(connection: sqlite3.Connection) -> Iterator[str]:
    counts: dict[str, dict[str, int]] = {}
    for kind, status, items in connection.execute(SQL["by_kind"]):
        counts.setdefault(kind, {})[status] = items
    heads = ("Kind", *(status.replace("_", " ").capitalize() for status in STATUSES))
    rows = [(kind, *(counts[kind].get(s, 0) for s in STATUSES)) for kind in sorted(counts)]
    yield from ("## Work items by kind", "")
    yield from table(heads, rows, "_No work items yet._")


def _open(connection: sqlite3.Connection, now: int) -> Iterator[str]:
    (total,) = connection.execute(SQL["open_count"]).fetchone()
    (stale,) = connection.execute(SQL["stale_count"], {"now": now}).fetchone()
    yield from ("## Open work items", "")
    if stale:
        yield from (f"**{stale} in flight without a sign of the claimant.**", "")
    shown = connection.execute(SQL["open"], {"limit": _MOST_OPEN}).fetchall()
    heads = ("ID", "Kind", "Status", "Owner", "Updated", "Age", "Attempts", "Attention")
    rows = [
        (r["id"], r["kind"], r["status"], r["owner_agent"], format_time(r["updated_at"]),
         span(now - r["created_at"]), r["attempt"] or None, attention(r, now))
        for r in shown
    ]  # fmt: skip
    yield from table(heads, rows, "_Nothing is open._")
    if total > len(shown):
        yield from (f"_… and {total - len(shown)} more, all of them changed later._", "")


def attention(row: sqlite3.Row, now: int) -> str | None:
    """Return the reason why a work item needs attention, if it does."""
    quiet = now - row["updated_at"]
    if row["status"] == "in_flight" and row["expires_at"] <= now:
        return f"stale: no sign since {span(now - row['expires_at'])} after its lease"
    if row["status"] == "waiting_human":
        return f"waits for a person, {span(quiet)}"
    if row["status"] == "pending" and row["not_before"] > now:
        return f"not before {format_time(row['not_before'])}"
    return f"waits, {span(quiet)}" if row["status"] == "pending" and quiet > _OLD_MS else None


def table(heads: tuple[str, ...], rows: list[tuple[Any, ...]], none: str) -> list[str]:
    """Return a Markdown table, or the line for an empty table; an empty line follows."""
    if not rows:
        return [none, ""]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return [*lines, ""]


def cell(value: Any) -> str:
    """Return a value, escaped for a cell."""
    if value is None or value == "":
        return NOTHING
    return " ".join(str(value).replace("|", "\\|").split())


def format_time(ms: int) -> str:
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        # No calendar has this time.
        return str(ms)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03}Z"


def span(ms: int) -> str:
    """Return a duration for people."""
    seconds = max(0, ms) // 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
