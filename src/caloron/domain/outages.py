"""When nothing can be asked of the forge: its quota is used up, or it does not answer."""

from __future__ import annotations

from typing import NamedTuple

_LONGEST = 200


class Outage(NamedTuple):
    """Since when, and until when if the forge says so; both in seconds since 1970."""

    since: float
    until: float | None
    detail: str

    def __str__(self) -> str:
        if self.until is not None:
            return f"forge quota until {_time(self.until, self.since)}"
        return f"forge does not answer since {_time(self.since, self.since)} ({self.detail})"


def outage_after(before: Outage | None, detail: str, until: float | None, now: float) -> Outage:
    """The outage as it is after one more look that failed: it began with the first."""
    detail = " ".join(detail.split())[:_LONGEST]
    if before is None or (before.until is None) != (until is None):
        return Outage(now, until, detail)
    return Outage(before.since, until, before.detail if until is None else detail)


def _time(at: float, near: float) -> str:
    """The time of day; with the day if that is another."""
    from caloron.domain.pauses import clock_time

    day, _, time = clock_time(at).partition(" ")
    return time if clock_time(near).startswith(day) else f"{day} {time}"
