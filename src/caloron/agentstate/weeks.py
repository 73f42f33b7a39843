"""ISO weeks and the times that people write, in ms since 1970."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from caloron.errors import CaloronError

_LABEL = re.compile(r"(\d{4})-W(\d{2})")
#: As agent-state takes them too; a time without a zone is local.
_FORMS = tuple(
    f"{day}{time}"
    for day in ("%b %d %Y", "%b %d, %Y", "%d %b %Y", "%Y/%m/%d", "%B %d %Y", "%B %d, %Y")
    for time in ("", " %H:%M", " %H:%M:%S")
)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


class Week(NamedTuple):
    """One ISO week: from Monday 00:00 UTC to the next."""

    label: str
    monday: date

    @property
    def begins(self) -> int:
        return _midnight(self.monday)

    @property
    def ends(self) -> int:
        return _midnight(self.monday + timedelta(days=7))

    def earlier(self, weeks: int) -> Week:
        return week_of(self.monday - timedelta(weeks=weeks))


def _midnight(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000)


def week_of(day: date) -> Week:
    """The week of a day."""
    year, week, weekday = day.isocalendar()
    return Week(f"{year}-W{week:02}", day - timedelta(days=weekday - 1))


def week_named(label: str) -> Week:
    """The week of a label; one that no year has is refused."""
    found = _LABEL.fullmatch(label)
    try:
        # The weeks around it must have days too.
        if found is None or not 1970 <= int(found[1]) < 9999:
            raise ValueError(label)
        return Week(label, date.fromisocalendar(int(found[1]), int(found[2]), 1))
    except (ValueError, OverflowError):
        raise CaloronError(
            f"there is no week {label[:40]!r}", hint="write it as 2026-W46; most years have 52"
        ) from None


def last_week(now: datetime) -> Week:
    """The last week that is over."""
    return week_of(now.astimezone(UTC).date() - timedelta(weeks=1))


def milliseconds(text: str) -> int:
    """A time: digits are ms since 1970; a day begins in UTC, a time without a zone is local."""
    if text.isascii() and text.isdigit():
        return min(int(text[:20]), 2**62)
    try:
        found = datetime.fromisoformat(text)
        if _DAY.fullmatch(text):
            found = found.replace(tzinfo=UTC)
        return int(found.timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        # Another form of a time, which the next lines try.
        pass
    for form in _FORMS:
        with suppress(ValueError, OverflowError, OSError):
            # The next form may fit.
            return int(datetime.strptime(text, form).timestamp() * 1000)  # noqa: DTZ007 - local
    from email.utils import parsedate_to_datetime

    try:
        return int(parsedate_to_datetime(text).timestamp() * 1000)
    except (ValueError, TypeError, OverflowError, OSError):
        raise CaloronError(
            f"{text[:60]!r} is no time", hint="write 2026-11-16T08:00:00Z, or ms since 1970"
        ) from None
