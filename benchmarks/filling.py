"""A long history for a ledger, as many earlier sprints leave it, written fast."""

from __future__ import annotations

import sqlite3
from pathlib import Path

#: The events of a finished piece of work in the diary.
_LIFE = (
    ("work_item_created", '{"kind": "implement", "status": "pending"}'),
    ("work_item_claimed", '{"status": "in_flight"}'),
    ("attempt_started", '{"attempt": 1}'),
    ("attempt_ended", '{"exit_code": 0, "timed_out": false, "bytes": 5, "last_line": "done"}'),
    ("work_item_resolved", '{"status": "done", "notes": "done"}'),
)
_ROLES = ("implement", "verify", "review", "fix")
_PAYLOAD = '{"type": "start_work", "task": "t1", "work": {"item": "old", "role": "implement"}}'
_COUNT = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :items) "
_ITEM = "'bench-' || (1000 + i / 100) || '/t' || (i % 100) || '/' || (i % 7) || '-old'"


def fill(path: Path, events: int) -> None:
    """Add `events` events of finished work, in time order and before everything that follows."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    items = {"items": events // len(_LIFE)}
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        f"{_COUNT} INSERT INTO work_items"
        f" SELECT {_ITEM}, {_pick('i', _ROLES)}, '{_PAYLOAD}', 'done', 'engine-1', i, i, NULL"
        " FROM n",
        items,
    )
    connection.execute(
        f"{_COUNT} INSERT INTO leases (item, token, holder, attempt, result)"
        f" SELECT {_ITEM}, 1, 'engine-1', 1, '{_LIFE[3][1]}' FROM n",
        items,
    )
    types, payloads = zip(*_LIFE, strict=True)
    connection.execute(
        f"{_COUNT}, step (s) AS (VALUES {', '.join(f'({n})' for n in range(len(_LIFE)))})"
        " INSERT INTO events (ts, type, actor, work_item_id, payload)"
        f" SELECT 1000000 + 10 * i + s, {_pick('s', types)}, 'engine-1', {_ITEM},"
        f" {_pick('s', payloads)} FROM n, step",
        items,
    )
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def _pick(number: str, texts: tuple[str, ...]) -> str:
    cases = " ".join(f"WHEN {n} THEN '{text}'" for n, text in enumerate(texts))
    return f"CASE {number} % {len(texts)} {cases} END"
