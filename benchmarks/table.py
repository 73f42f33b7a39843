"""The table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.measure import Measure

HEAD = ("measure", "value", "bound", "of bound", "verdict")
_WIDTHS = (46, 12, 12, 9, 8)


def head() -> str:
    return _line(HEAD) + "\n" + _line(tuple("-" * width for width in _WIDTHS))


def row(measure: Measure) -> str:
    sign = "≥" if measure.better == "more" else "≤"
    bound = "" if measure.bound is None else f"{sign} {_number(measure.bound)} {measure.unit}"
    ratio = "" if measure.ratio is None else f"{measure.ratio:.2f}"
    verdict = "" if measure.bound is None else ("met" if measure.met else "NOT MET")
    value = f"{_number(measure.value)} {measure.unit}"
    line = _line((measure.name, value, bound, ratio, verdict))
    return f"{line}\n    {measure.note}" if measure.note else line


def summary(measures: Sequence[Measure]) -> str:
    bounded = [m for m in measures if m.bound is not None]
    missed = [m for m in bounded if not m.met]
    if not missed:
        return f"All {len(bounded)} bounds are met."
    lines = [f"not met: {m.name}: {_number(m.value)} {m.unit} ({row_bound(m)})" for m in missed]
    return "\n".join([f"{len(bounded) - len(missed)} of {len(bounded)} bounds are met.", *lines])


def row_bound(measure: Measure) -> str:
    sign = "at least" if measure.better == "more" else "at most"
    return f"{sign} {_number(measure.bound or 0)} {measure.unit}".rstrip()


def _line(cells: Sequence[str]) -> str:
    first, *rest = (cell.strip() for cell in cells)
    widths = _WIDTHS[1:]
    return f"{first:<{_WIDTHS[0]}}  " + "  ".join(
        f"{cell:>{width}}" for cell, width in zip(rest, widths, strict=True)
    )


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"
