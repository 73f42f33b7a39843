"""Cron expressions, in UTC.

Five fields mean what crontab means: minute hour day month weekday, Sunday is 0 or 7, and if day
and weekday are both restricted, one of them is enough. Six or seven fields mean what Noether's
scheduler means: second minute hour day month weekday [year], Sunday is 1, and day and weekday must
both match. `cronsim` does the calendar; this module translates the second form for it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import msgspec
from cronsim import CronSim, CronSimError

_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
_DAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_YEARS = range(1970, 2101)
_MAX_LENGTH = 1000
_SYNTAX = re.compile(r"[0-9*,/-]+")
_TERM = re.compile(r"(\*|[0-9]+)(?:-([0-9]+))?(?:/([0-9]+))?")


class BadCron(ValueError):
    """An expression that cannot be read; the message names the field."""


class Cron(msgspec.Struct, frozen=True, kw_only=True):
    """A checked expression."""

    #: As `cronsim` reads it: five fields, or six with the seconds first.
    expression: str
    years: tuple[int, ...] = tuple(_YEARS)

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first match later than `moment`; None if there is none."""
        moment = moment.astimezone(UTC)
        while (match := next(_simulation(self.expression, moment), None)) is not None:
            if match.year in self.years:
                return match
            year = next((year for year in self.years if year > match.year), None)
            if year is None:
                break
            moment = datetime(year - 1, 12, 31, 23, 59, 59, tzinfo=UTC)
        return None


def parse_cron(text: str) -> Cron:
    """Read an expression of 5, 6 or 7 fields, or a word such as `@daily`."""
    if len(text) > _MAX_LENGTH:
        raise BadCron(f"an expression has at most {_MAX_LENGTH} characters, not {len(text)}")
    word = text.strip().lower()
    if word.startswith("@") and word not in _MACROS:
        raise BadCron(f"{text.strip()!r} is not known; known are {', '.join(_MACROS)}")
    fields = _MACROS.get(word, word).replace("?", "*").split()
    if len(fields) not in (5, 6, 7):
        raise BadCron(
            "expected 5 fields (minute hour day month weekday) or 6 (second first), found"
            f" {len(fields)}"
        )
    years = tuple(_YEARS)
    if len(fields) == 7:
        years = tuple(_numbers(fields.pop(), _YEARS, "year"))
    fields[-2] = _without_names(fields[-2], _MONTHS, first=1)
    fields[-1] = _without_names(fields[-1], _DAYS, first=len(fields) - 5)
    if len(fields) == 6 and fields[-1] != "*":
        weekdays = _numbers(fields[-1], range(1, 8), "weekday")
        fields[-1] = ",".join(str(number - 1) for number in weekdays)
    for field in fields:
        # `cronsim` also knows L, W and #, which neither of the two forms has.
        if not _SYNTAX.fullmatch(field):
            raise BadCron(f"{field!r} cannot be read")
    cron = Cron(expression=" ".join(fields), years=years)
    try:
        _simulation(cron.expression, datetime.now(UTC))
    except CronSimError as error:
        raise BadCron(str(error)) from error
    return cron


def _simulation(expression: str, after: datetime) -> CronSim:
    simulation = CronSim(expression, after)
    if len(expression.split()) == 6:
        simulation.day_and = True
    return simulation


def _without_names(field: str, names: tuple[str, ...], *, first: int) -> str:
    """Replace English names, whole or of three letters, by numbers from `first` on."""
    for number, name in enumerate(names, first):
        field = re.sub(rf"\b(?:{name}|{name[:3]})\b", str(number), field)
    return field


def _numbers(field: str, allowed: range, name: str) -> list[int]:
    """Expand a field that `cronsim` counts differently, or does not have."""
    numbers: set[int] = set()
    for term in field.split(","):
        match = _TERM.fullmatch(term)
        if match is None or (match[1] == "*" and match[2]):
            raise BadCron(f"{name}: {term!r} cannot be read")
        low = allowed[0] if match[1] == "*" else int(match[1])
        high = int(match[2] or (allowed[-1] if match[3] or match[1] == "*" else low))
        step = int(match[3] or 1)
        if not (allowed[0] <= low <= high <= allowed[-1] and step):
            raise BadCron(f"{name}: {term!r} is not from {allowed[0]} to {allowed[-1]}")
        numbers.update(range(low, high + 1, step))
    return sorted(numbers)
