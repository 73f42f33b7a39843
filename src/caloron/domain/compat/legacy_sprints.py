"""The `sprints.json` of `caloron-alpibru`, the older program: parsed, numbered, summarised.

Standard library only: `status` and `history` read such a file, and have to start fast.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

Record = dict[str, Any]

_LARGEST_NUMBER = 1_000_000
_LONGEST = 2000
_MOST = 1000
#: The result of a sprint; the other fields of a record identify it.
_NUMBERS = (
    "total_tasks",
    "completed_tasks",
    "failed_tasks",
    "avg_clarity",
    "supervisor_events",
    "sprint_time_s",
    "blockers",
)


class LegacySummary(NamedTuple):
    """The content of a record, with defaults for fields that are missing or of a wrong type."""

    goal: str
    exit_code: int
    total: int
    completed: int
    failed: int
    clarity: float | None
    interventions: int
    duration_s: float
    completed_at: str
    blockers: tuple[str, ...]
    tools: tuple[str, ...]


def parse_json(text: bytes) -> Any:
    """Parse JSON of another program, without values that cannot be stored; else `ValueError`."""
    try:
        # NaN is not JSON, and cannot be summed up.
        content = json.loads(text, parse_constant=lambda _: None)
        # JSON can contain unpaired surrogates, which UTF-8 cannot.
        return json.loads(json.dumps(content, ensure_ascii=False).encode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_history(text: bytes) -> list[Record]:
    """Return the records of a `sprints.json`; `ValueError` describes what is wrong with it."""
    content = parse_json(text)
    if isinstance(content, Mapping):
        content = content.get("sprints")
    if not isinstance(content, list):
        raise ValueError("it has no list of sprints")
    return [record for record in content if isinstance(record, dict)]


def number_records(records: list[Record], own: Mapping[int, str]) -> list[tuple[int, Record]]:
    """Return the sprints of the older program, each with a unique number, in the file's order.

    The older program used the length of its list as id, so an id may occur twice. `own` has the
    goals of the sprints in the ledger by number: their records are left out.
    """
    goals = dict(own)
    numbered: list[tuple[int, Record]] = []
    imported: set[int] = set()
    last, before = 0, None
    for record in records:
        goal, id = text_of(record.get("goal")), _number(record.get("sprint_id"))
        if goals.get(id) == goal and id not in imported:
            continue
        number = id if id > last and id not in goals else last + 1
        while number in goals:
            number += 1
        numbered.append((number, _cleaned(record, number, before)))
        imported.add(number)
        goals[number], last = goal, number
        before = record if "total_tasks" in record and not _failed(record) else before
    return numbered


def _cleaned(record: Record, number: int, before: Record | None) -> Record:
    """Return a record with its number, and without results that belong to another sprint."""
    kept = {**record, "sprint_id": number, "adopted": True}
    if _number(record.get("sprint_id")) != number:
        kept["recorded_id"] = record.get("sprint_id")
    repeated = before and all(record.get(name) == before.get(name) for name in _NUMBERS)
    if repeated and _failed(record):
        # The older program copied the results of the sprint before into that of a failed one.
        kept = {name: value for name, value in kept.items() if name not in _NUMBERS}
    return kept


def _failed(record: Record) -> bool:
    return bool(record.get("exit_code", 0))


def summary_of(record: Record) -> LegacySummary:
    """Return the content of a record in the types that reports need."""
    total, completed = _number(record.get("total_tasks")), _number(record.get("completed_tasks"))
    clarity = amount_of(record.get("avg_clarity"))
    return LegacySummary(
        goal=text_of(record.get("goal"), 64_000),
        exit_code=_number(record.get("exit_code")),
        total=total,
        completed=completed,
        failed=_number(record.get("failed_tasks")) if "failed_tasks" in record else 0,
        # The older program wrote zero when no agent had given feedback.
        clarity=clarity if clarity and total else None,
        interventions=_number(record.get("supervisor_events")),
        duration_s=amount_of(record.get("duration_s")) or amount_of(record.get("sprint_time_s")),
        completed_at=text_of(record.get("completed_at"), 64),
        blockers=_texts(record.get("blockers")),
        tools=_texts(record.get("tools_used")),
    )


def text_of(value: object, longest: int = _LONGEST) -> str:
    """Return a text or number of another program as text; empty for anything else."""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return ""
    return str(value).encode("utf-8", "replace").decode().strip()[:longest]


def _texts(value: object) -> tuple[str, ...]:
    entries = value if isinstance(value, list) else [value]
    return tuple(text for entry in entries[:_MOST] if (text := text_of(entry)))


def _number(value: object) -> int:
    amount = amount_of(value)
    return int(amount) if amount <= _LARGEST_NUMBER else 0


def amount_of(value: object) -> float:
    """Return a number of another program; 0 for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:12])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if 0 <= value < 1e12 else 0.0
