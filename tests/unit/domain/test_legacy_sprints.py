"""The history of the older program: every quirk of its file has one meaning here."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloron.domain.compat.legacy_sprints import number_records, parse_history, summary_of
from caloron.domain.reporting.history import remembered, with_adopted
from caloron.domain.reporting.kpis import Kpis
from caloron.domain.reporting.learnings import Kept, SprintRecord

NUMBERS: dict[str, Any] = {
    "total_tasks": 2,
    "completed_tasks": 2,
    "failed_tasks": 0,
    "avg_clarity": 5.5,
    "supervisor_events": 1,
    "sprint_time_s": 13,
    "blockers": ['the task never says what "empty" means'],
}


def record(id: Any, goal: str = "a goal", **more: Any) -> dict[str, Any]:
    return {"sprint_id": id, "goal": goal, "exit_code": 0, "duration_s": 15} | more


def numbers(*ids: Any) -> list[int]:
    return [number for number, _ in number_records([record(id) for id in ids], {})]


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ((1, 2, 3), [1, 2, 3]),
        ((2, 3, 3, 4), [2, 3, 4, 5]),
        ((1, 5), [1, 5]),
        ((3, 1), [3, 4]),
        ((None, "2", "x", True, -1, 10**30, 1.5), [1, 2, 3, 4, 5, 6, 7]),
    ],
    ids=["plain", "one twice", "a gap", "out of order", "no numbers"],
)
def test_each_sprint_gets_a_number_of_its_own_in_the_order_of_the_file(
    recorded: tuple[Any, ...], expected: list[int]
) -> None:
    assert numbers(*recorded) == expected


def test_the_number_in_the_file_is_kept() -> None:
    (_, first), (number, second) = number_records([record(1, "one"), record(1, "two")], {})
    assert "recorded_id" not in first
    assert (number, second["recorded_id"]) == (2, 1)


def test_a_failed_sprint_loses_the_numbers_that_it_repeats() -> None:
    records = [
        record(1, **NUMBERS),
        record(2, "failed", exit_code=1, **NUMBERS),
        record(3, "ran", **NUMBERS),
    ]
    _, (_, failed), (_, again) = number_records(records, {})
    assert summary_of(failed).total == 0
    assert summary_of(failed).blockers == ()
    assert (failed["goal"], failed["exit_code"]) == ("failed", 1)
    # A successful sprint may have the same results as the one before.
    assert summary_of(again).total == 2


def test_a_failed_sprint_with_numbers_of_its_own_keeps_them() -> None:
    own = NUMBERS | {"completed_tasks": 1, "failed_tasks": 1}
    _, (_, failed) = number_records([record(1, **NUMBERS), record(2, exit_code=1, **own)], {})
    assert summary_of(failed).completed == 1


def test_known_sprints_are_not_imported_again() -> None:
    records = [record(1, "old"), record(2, "ours"), record(3, "new")]
    numbered = number_records(records, {1: "old", 2: "ours"})
    assert [(number, record["goal"]) for number, record in numbered] == [(3, "new")]


def test_a_sprint_with_a_used_number_gets_the_next_free_number() -> None:
    ((number, _),) = number_records([record(2, "theirs")], {1: "ours", 2: "also ours"})
    assert number == 3


def test_missing_or_mistyped_fields_stay_empty() -> None:
    facts = summary_of({"goal": 7, "total_tasks": "two", "avg_clarity": None, "blockers": "alone"})
    assert (facts.goal, facts.total, facts.clarity) == ("7", 0, None)
    assert facts.blockers == ("alone",)
    # The ancestor wrote zero for missing feedback.
    assert summary_of(record(1, total_tasks=0, avg_clarity=0.0)).clarity is None


@pytest.mark.parametrize("text", [b"", b"{", b"3", b'{"sprints": 3}', b"\xff", b"[" * 100_000])
def test_a_file_that_is_no_history_is_refused_with_a_reason(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_history(text)


def test_lone_surrogates_and_nan_are_not_imported() -> None:
    (entry,) = parse_history(b'{"sprints": [{"goal": "\\ud800x", "duration_s": NaN}, "no record"]}')
    assert entry == {"goal": "?x", "duration_s": None}


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
)
values = scalars | st.lists(scalars, max_size=2)
fields = ("sprint_id", "goal", "exit_code", "duration_s", "completed_at", *NUMBERS)
records = st.dictionaries(st.sampled_from(fields), values, max_size=6)


@given(st.lists(records, max_size=5))
def test_any_file_is_imported_completely_and_once(content: list[dict[str, Any]]) -> None:
    parsed = parse_history(json.dumps({"sprints": content}).encode("utf-8", "replace"))
    numbered = number_records(parsed, {})
    assert len(numbered) == len(content)
    assert len({number for number, _ in numbered}) == len(numbered)
    for _, record in numbered:
        assert remembered("x", record).kpis.total_tasks >= 0
    known = {number: summary_of(record).goal[:2000] for number, record in numbered}
    assert number_records([record for _, record in numbered], known) == []


def learned(id: str, total: int, done: int) -> SprintRecord:
    return SprintRecord(id=id, kpis=Kpis(total_tasks=total, completed_tasks=done))


def test_a_sprint_in_both_history_and_learnings_counts_once() -> None:
    history = [learned("shop-1", 2, 2), learned("shop-2", 0, 0), learned("shop-3", 2, 2)]
    kept = Kept(sprints=(learned("before-1", 2, 2), learned("before-2", 3, 1)))
    ids = [record.id for record in with_adopted(kept, history).sprints]
    assert ids == ["before-2", "shop-1", "shop-2", "shop-3"]
    again = with_adopted(with_adopted(kept, history), history)
    assert [record.id for record in again.sprints] == ids
