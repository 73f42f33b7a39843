"""When something is due: expressions of cron, in UTC, as the two worlds that write them mean them.

Five fields are those of crontab: minute hour day month weekday, Sunday is 0 or 7, and of a day and
a weekday that are both restricted one is enough. Six or seven are those of Noether's scheduler:
second minute hour day month weekday [year], Sunday is 1, and both must fit. No library reads both:
they count weekdays from 0 and put seconds last.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta

import msgspec

_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
_DAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_MACROS = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 1",
    "@daily": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}
_FIRST_YEAR, _LAST_YEAR = 1970, 2100
_PART = re.compile(r"(\*|\?|[a-z0-9]+)(?:-([a-z0-9]+))?(?:/(\d{1,4}))?")
_LONGEST = 1000


class BadCron(ValueError):
    """An expression that cannot be read; the message says which field, and what was expected."""


class _Field(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    low: int
    high: int
    #: Words for the numbers from `low` on; three letters of one are enough.
    words: tuple[str, ...] = ()


_SECOND = _Field(name="second", low=0, high=59)
_MINUTE = _Field(name="minute", low=0, high=59)
_HOUR = _Field(name="hour", low=0, high=23)
_DAY = _Field(name="day", low=1, high=31)
_MONTH = _Field(name="month", low=1, high=12, words=_MONTHS)
_WEEKDAY_FROM_0 = _Field(name="weekday", low=0, high=7, words=_DAYS)
_WEEKDAY_FROM_1 = _Field(name="weekday", low=1, high=7, words=_DAYS)
_YEAR = _Field(name="year", low=_FIRST_YEAR, high=_LAST_YEAR)
_CRONTAB = (_MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY_FROM_0)
_NOETHER = (_SECOND, _MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY_FROM_1, _YEAR)


class Cron(msgspec.Struct, frozen=True, kw_only=True):
    """The moments of an expression."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: tuple[int, ...]
    #: As `date.isoweekday() % 7` counts: Sunday is 0.
    weekdays: frozenset[int]
    years: tuple[int, ...]
    #: Whether a day or a weekday that fits is enough.
    either: bool

    def next_after(self, moment: datetime) -> datetime | None:
        """The first moment that is later; None: it never comes."""
        at = moment.astimezone(UTC).replace(microsecond=0) + timedelta(seconds=1)
        for day in self._days_from(at.date()):
            earliest = at.time() if day == at.date() else time()
            found = self._time_from(earliest)
            if found is not None:
                return datetime.combine(day, found, UTC)
        return None

    def _days_from(self, first: date) -> Iterator[date]:
        for year in self.years:
            for month in self.months if year >= first.year else ():
                if (year, month) < (first.year, first.month):
                    continue
                for number in range(1, monthrange(year, month)[1] + 1):
                    day = date(year, month, number)
                    if day >= first and self._is_day(day):
                        yield day

    def _is_day(self, day: date) -> bool:
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return of_month or of_week if self.either else of_month and of_week

    def _time_from(self, first: time) -> time | None:
        given = (first.hour, first.minute, first.second)
        for hour in self.hours:
            for minute in self.minutes if hour >= first.hour else ():
                if (hour, minute) < given[:2]:
                    continue
                for second in self.seconds:
                    if (hour, minute, second) >= given:
                        return time(hour, minute, second)
        return None


def parse_cron(text: str) -> Cron:
    """Read an expression of 5, 6 or 7 fields, or a word such as `@daily`."""
    if len(text) > _LONGEST:
        raise BadCron(f"an expression of {len(text)} letters is none")
    words = _MACROS.get(text.strip().lower(), text).lower().split()
    if text.strip().startswith("@") and text.strip().lower() not in _MACROS:
        raise BadCron(f"{text.strip()!r} is not known; known are {', '.join(_MACROS)}")
    if len(words) == len(_CRONTAB):
        minutes, hours, days, months, weekdays = _read(words, _CRONTAB)
        restricted = not words[2].startswith(("*", "?")) and not words[4].startswith(("*", "?"))
        return Cron(
            seconds=(0,),
            minutes=minutes,
            hours=hours,
            days=frozenset(days),
            months=months,
            weekdays=frozenset(day % 7 for day in weekdays),
            years=tuple(range(_FIRST_YEAR, _LAST_YEAR + 1)),
            either=restricted,
        )
    if len(words) not in (len(_NOETHER) - 1, len(_NOETHER)):
        raise BadCron(
            f"expected 5 fields (minute hour day month weekday) or 6 (second first), found"
            f" {len(words)}"
        )
    seconds, minutes, hours, days, months, weekdays, years = _read(
        [*words, "*"][: len(_NOETHER)], _NOETHER
    )
    return Cron(
        seconds=seconds,
        minutes=minutes,
        hours=hours,
        days=frozenset(days),
        months=months,
        weekdays=frozenset(day - 1 for day in weekdays),
        years=years,
        either=False,
    )


def _read(words: list[str], fields: tuple[_Field, ...]) -> list[tuple[int, ...]]:
    return [_values(word, field) for word, field in zip(words, fields, strict=True)]


def _values(word: str, field: _Field) -> tuple[int, ...]:
    found: set[int] = set()
    for part in word.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise BadCron(f"{field.name}: {part!r} cannot be read")
        first, last, step = match.groups()
        if first in ("*", "?"):
            if last:
                raise BadCron(f"{field.name}: {part!r} cannot be read")
            low, high = field.low, field.high
        else:
            low = _number(first, field)
            high = _number(last, field) if last else (field.high if step else low)
        if low > high:
            raise BadCron(f"{field.name}: {part!r} ends before it begins")
        if step == "0" or (step and int(step) == 0):
            raise BadCron(f"{field.name}: {part!r} has no step")
        found |= set(range(low, high + 1, int(step or 1)))
    return tuple(sorted(found))


def _number(word: str, field: _Field) -> int:
    for number, name in enumerate(field.words, field.low):
        if word in (name, name[:3]):
            return number
    if not word.isdecimal() or not field.low <= int(word) <= field.high:
        allowed = f" or {field.words[0][:3]}-{field.words[-1][:3]}" if field.words else ""
        raise BadCron(f"{field.name}: {word!r} is not from {field.low} to {field.high}{allowed}")
    return int(word)
