"""Cron expressions with five and six fields, and invalid expressions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from caloron.schedule.cron import BadCron, parse_cron

START = datetime(2026, 11, 16, 12, 30, 15, tzinfo=UTC)  # a Monday


def _next(text: str, moment: datetime = START) -> str:
    following = parse_cron(text).next_after(moment)
    return f"{following:%Y-%m-%d %H:%M:%S}" if following else "never"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("* * * * *", "2026-11-16 12:31:00"),
        ("*/15 * * * *", "2026-11-16 12:45:00"),
        ("0 18 * * 5", "2026-11-20 18:00:00"),
        ("0 18 * * friday", "2026-11-20 18:00:00"),
        ("0 18 * * fri", "2026-11-20 18:00:00"),
        ("0 0 * * 0", "2026-11-22 00:00:00"),
        ("0 0 * * 7", "2026-11-22 00:00:00"),
        ("0 0 1 1 *", "2027-01-01 00:00:00"),
        ("30 12 16 11 *", "2027-11-16 12:30:00"),
        ("5-10/2,50 12 * * *", "2026-11-16 12:50:00"),
        ("0 0 29 2 *", "2028-02-29 00:00:00"),
        ("0 0 13 * 5", "2026-11-20 00:00:00"),
        ("10/20 13 * * *", "2026-11-16 13:10:00"),
        ("* * * * * *", "2026-11-16 12:30:16"),
        ("0 0 * * * *", "2026-11-16 13:00:00"),
        ("0 0 18 * * 6", "2026-11-20 18:00:00"),
        ("0 0 18 ? * FRI", "2026-11-20 18:00:00"),
        ("0 0 0 * * 1", "2026-11-22 00:00:00"),
        ("0 0 0 13 * 6", "2026-11-13 00:00:00+1y"),
        ("0 0 0 1 1 * 2030", "2030-01-01 00:00:00"),
        ("@hourly", "2026-11-16 13:00:00"),
        ("@daily", "2026-11-17 00:00:00"),
        ("@weekly", "2026-11-22 00:00:00"),
        ("@monthly", "2026-12-01 00:00:00"),
        ("@yearly", "2027-01-01 00:00:00"),
    ],
)
def test_an_expression_has_its_next_moment(text: str, expected: str) -> None:
    if expected.endswith("+1y"):
        # With seconds, day and weekday must both match: a Friday the 13th.
        following = parse_cron(text).next_after(START)
        assert following is not None
        assert (following.day, following.isoweekday()) == (13, 5)
    else:
        assert _next(text) == expected


def test_an_expression_with_past_years_has_no_next_moment() -> None:
    assert _next("0 0 0 1 1 * 2020") == "never"


@pytest.mark.parametrize(
    "text",
    ["", "*", "* * * *", "* * * * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *",
     "* * * * 8", "*/0 * * * *", "5-1 * * * *", "x * * * *", "1,, * * * *", "*-3 * * * *", "@often",
     "0 0 0 * * 0", "-1 * * * *", "* * * * mon-", "* * * * monkey",
     "1" * 2000, "* * L * *", "* * * * 5#2", "* * * * 5L", "0 0 30 2 *", "0 0 0 * * 8",
     "0 0 0 * * * 1969", "0 0 0 * * */0"],
)  # fmt: skip
def test_an_invalid_expression_is_refused(text: str) -> None:
    with pytest.raises(BadCron):
        parse_cron(text)


@given(
    minute=some.sampled_from(["*", "*/7", "3", "10-20", "1,59"]),
    hour=some.sampled_from(["*", "*/5", "0", "22-23"]),
    day=some.sampled_from(["*", "1", "15,31", "29"]),
    weekday=some.sampled_from(["*", "0", "1-5", "6/1", "5/2", "*/3", "sat"]),
    seconds=some.integers(0, 3 * 366 * 86400),
)
@settings(max_examples=60, deadline=None)
def test_the_next_moment_is_the_first_that_a_slow_search_finds(
    minute: str, hour: str, day: str, weekday: str, seconds: int
) -> None:
    cron = parse_cron(f"{minute} {hour} {day} * {weekday}")
    moment = START + timedelta(seconds=seconds)
    following = cron.next_after(moment)
    assert following is not None
    assert following > moment
    # There is no earlier match: every moment in between has the same result.
    middle = moment + (following - moment) / 2
    assert cron.next_after(middle) == following
    assert cron.next_after(following - timedelta(seconds=1)) == following


@pytest.mark.parametrize(
    ("weekday", "expected"),
    [("*", "sun mon tue wed thu fri sat"), ("*/3", "sun wed sat"), ("2-4", "mon tue wed"),
     ("7/1", "sat"), ("2/2", "mon wed fri"), ("1,7", "sun sat"), ("mon-wed", "mon tue wed")],
)  # fmt: skip
def test_six_fields_count_weekdays_from_sunday(weekday: str, expected: str) -> None:
    cron, moment = parse_cron(f"0 0 0 * * {weekday}"), START + timedelta(days=5)
    week: list[str] = []
    while (due := cron.next_after(moment)) and due < START + timedelta(days=12):
        week.append(f"{due:%a}".lower())
        moment = due
    assert " ".join(week) == expected
