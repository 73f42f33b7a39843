"""The limit of cycles for one task: the same for sprints and for an agent alone."""

from __future__ import annotations

#: Work that takes more cycles than this.
SLICE_AFTER = 3


def to_slice(cycles: int) -> bool:
    """True if work took so many cycles that it should be split."""
    return cycles > SLICE_AFTER


def cut_smaller(cycles: int) -> str:
    """Return advice about such work; empty: none is needed."""
    return f"more than {SLICE_AFTER} cycles: cut it smaller" if to_slice(cycles) else ""
