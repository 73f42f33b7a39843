"""When work should have been cut smaller: the same for sprints and for an agent alone."""

from __future__ import annotations

#: Work that takes more cycles than this.
SLICE_AFTER = 3


def to_slice(cycles: int) -> bool:
    """Whether work that took so many cycles is to be cut smaller."""
    return cycles > SLICE_AFTER


def cut_smaller(cycles: int) -> str:
    """What people are told of such work; empty: there is nothing to tell."""
    return f"more than {SLICE_AFTER} cycles: cut it smaller" if to_slice(cycles) else ""
