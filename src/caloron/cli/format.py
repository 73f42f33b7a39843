"""Numbers, times and texts as every command prints them."""

from __future__ import annotations


def printable(text: str) -> str:
    """Replace the characters that could control a terminal."""
    return "".join(c if c in "\n\t" or c.isprintable() else "�" for c in text)


def one_line(text: str, width: int = 0) -> str:
    """The text on one printable line; with a width, cut to it with an ellipsis."""
    line = " ".join(printable(text).split())
    return line if not width or len(line) <= width else line[: width - 1] + "…"


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 task", "3 tasks"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def dollars(usd: float) -> str:
    return f"${usd:.2f}" if usd else "-"


def size(count: int) -> str:
    """A number of bytes: "512 B", "1.5 kB"."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 10 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def local_time(iso: str | None) -> str:
    """A time of a command's data, which is in UTC, in the time zone of the user."""
    from datetime import datetime

    from caloron.domain.reporting.waiting import clock_time

    return clock_time(datetime.fromisoformat(iso).timestamp()) if iso else ""


def local_times(began: str, ended: str | None) -> str:
    """From when to when something lasted, with the day once if it is the same."""
    start, end = local_time(began), local_time(ended)
    if not end:
        return f"since {start}"
    day, time, zone = start.split(" ", 2)
    same_day = end.startswith(day) and end.endswith(zone)
    return f"{day} {time} to {end.removeprefix(day).lstrip()}" if same_day else f"{start} to {end}"
