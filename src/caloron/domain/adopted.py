"""Sprints that an older Caloron recorded: taken over from its `sprints.json`, quirks and all.

Standard library only: the commands that only look read such a file before anything else is there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

Record = dict[str, Any]

_LARGEST_NUMBER = 1_000_000
_LONGEST = 2000
_MOST = 1000
#: What a sprint came to; the rest of a record says which sprint it was.
_NUMBERS = (
    "total_tasks",
    "completed_tasks",
    "failed_tasks",
    "avg_clarity",
    "supervisor_events",
    "sprint_time_s",
    "blockers",
)


class Adopted(NamedTuple):
    """A sprint of an older Caloron, under the number that it has here."""

    number: int
    record: Record


class Facts(NamedTuple):
    """What a record says, whatever is missing in it or of a wrong type."""

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


def parse_foreign(text: bytes) -> Any:
    """JSON that somebody else wrote, without what can be stored nowhere; else a `ValueError`."""
    try:
        # NaN is no JSON, and no number that could be counted with.
        found = json.loads(text, parse_constant=lambda _: None)
        # Halves of characters can be written in JSON.
        return json.loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_history(text: bytes) -> list[Record]:
    """The records of a `sprints.json`; `ValueError` says what is wrong with the file."""
    found = parse_foreign(text)
    if isinstance(found, Mapping):
        found = found.get("sprints")
    if not isinstance(found, list):
        raise ValueError("it holds no list of sprints")
    return [entry for entry in found if isinstance(entry, dict)]


def adopt(
    records: list[Record],
    taken: Mapping[int, str] | None = None,
    before_this: Iterable[Record] = (),
) -> list[Adopted]:
    """The sprints that are not known yet, each under a number of its own, in the file's order.

    The older Caloron counted its list, so that an id may stand there twice. `taken` are the numbers
    in use with the goals that they stand for; `before_this` was adopted before.
    """
    seen = {_fingerprint(record) for record in before_this}
    known = dict(taken or {})
    found: list[Adopted] = []
    own: set[int] = set()
    last, before = 0, None
    for record in records:
        goal = text_of(record.get("goal"))
        recorded = _number(record.get("sprint_id"))
        same = known.get(recorded) == goal or (recorded in known and _is_ours(record))
        if (same and recorded not in own) or _fingerprint(record) in seen:
            continue
        number = recorded if recorded > last and recorded not in known else last + 1
        while number in known:
            number += 1
        found.append(Adopted(number, _cleaned(record, number, before)))
        own.add(number)
        known[number], last = goal, number
        before = record if "total_tasks" in record and not _failed(record) else before
    return found


def _fingerprint(record: Record) -> tuple[str, ...]:
    """The same for a record as it was written and as it was adopted."""
    recorded = record.get("recorded_id", record.get("sprint_id"))
    parts = (recorded, record.get("goal"), record.get("completed_at"))
    return tuple(map(repr, parts))


def _is_ours(record: Record) -> bool:
    """Whether we wrote the record, whatever somebody made of it since."""
    return "id" in record or record.get("adopted") is True


def _cleaned(record: Record, number: int, before: Record | None) -> Record:
    """The record as it is kept: with its own number, and without numbers of another sprint."""
    kept = {**record, "sprint_id": number, "adopted": True}
    if _number(record.get("sprint_id")) != number:
        kept["recorded_id"] = record.get("sprint_id")
    if before is not None and _failed(record) and _same_numbers(record, before):
        # The older Caloron filled the record of a failed sprint with those of the one before it.
        kept = {name: value for name, value in kept.items() if name not in _NUMBERS}
    return kept


def _failed(record: Record) -> bool:
    return bool(record.get("exit_code", 0))


def _same_numbers(one: Record, other: Record) -> bool:
    return all(one.get(name) == other.get(name) for name in _NUMBERS)


def facts_of(record: Record) -> Facts:
    """What a record says, in types that can be counted with."""
    total, completed = _number(record.get("total_tasks")), _number(record.get("completed_tasks"))
    clarity = _amount(record.get("avg_clarity"))
    return Facts(
        goal=text_of(record.get("goal"), 64_000),
        exit_code=_number(record.get("exit_code")),
        total=total,
        completed=completed,
        failed=_number(record.get("failed_tasks")) if "failed_tasks" in record else 0,
        # Zero is what was written when nobody had said anything.
        clarity=clarity if clarity and total else None,
        interventions=_number(record.get("supervisor_events")),
        duration_s=_amount(record.get("duration_s")) or _amount(record.get("sprint_time_s")),
        completed_at=text_of(record.get("completed_at"), 64),
        blockers=_texts(record.get("blockers")),
        tools=_texts(record.get("tools_used")),
    )


def text_of(value: object, longest: int = _LONGEST) -> str:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return ""
    return str(value).encode("utf-8", "replace").decode().strip()[:longest]


def _texts(value: object) -> tuple[str, ...]:
    entries = value if isinstance(value, list) else [value]
    return tuple(text for entry in entries[:_MOST] if (text := text_of(entry)))


def _number(value: object) -> int:
    amount = _amount(value)
    return int(amount) if amount <= _LARGEST_NUMBER else 0


def _amount(value: object) -> float:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:12])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if 0 <= value < 1e12 else 0.0
