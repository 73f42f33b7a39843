"""Versions order snapshots, although a forge has one-second resolution."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from caloron.forge.remote.snapshots import version

SECONDS = st.integers(1_000_000_000, 4_000_000_000)


@given(SECONDS, st.integers(-3_600_000, 3_600_000), st.integers(1, 100_000))
def test_of_two_snapshots_of_one_change_the_later_poll_is_newer(
    at: int, late: int, more: int
) -> None:
    assert version(at, at * 1000 + late) < version(at, at * 1000 + late + more)


@given(SECONDS, st.integers(1, 100_000), st.integers(0, 10**10), st.integers(0, 10**10))
def test_a_later_change_is_newer_in_any_order_of_polls(
    at: int, more: int, first: int, second: int
) -> None:
    """The order of the forge counts, because our clock may be wrong by any amount."""
    assert version(at, first) < version(at + more, second)


@given(SECONDS, st.integers(0, 10**14))
def test_a_version_fits_into_the_ledger(at: int, began: int) -> None:
    assert 0 < version(at, began) < 1 << 63
