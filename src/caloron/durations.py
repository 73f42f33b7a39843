"""Durations and times as data and on all pages, and the pauses between attempts."""

from __future__ import annotations

from typing import NamedTuple


def span(seconds: float) -> str:
    """Return a duration in at most two units: "46 s", "5 min 46 s", "2 h 5 min"."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    larger, smaller = (f"{hours} h", f"{minutes} min") if hours else (f"{minutes} min", f"{rest} s")
    return larger if smaller.startswith("0 ") else f"{larger} {smaller}"


def utc(moment: float, timespec: str = "seconds") -> str:
    """Return a moment in the data of a command: ISO 8601, in UTC."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(moment, UTC).isoformat(timespec=timespec)


class Backoff(NamedTuple):
    """The pauses between attempts: each is twice as long as the one before, up to a limit."""

    first_s: float
    longest_s: float

    def pause(self, attempt: int) -> float:
        """Return the pause after an attempt; the first attempt is 1."""
        return min(self.first_s * 2.0 ** min(attempt - 1, 60), self.longest_s)
