"""A length of time as every page shows it."""

from __future__ import annotations


def span(seconds: float) -> str:
    """A time in at most two units: "46 s", "5 min 46 s", "2 h 5 min"."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    larger, smaller = (f"{hours} h", f"{minutes} min") if hours else (f"{minutes} min", f"{rest} s")
    return larger if smaller.startswith("0 ") else f"{larger} {smaller}"
