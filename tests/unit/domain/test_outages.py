"""How a forge that cannot be asked is spoken of."""

from __future__ import annotations

from caloron.domain.reporting.waiting import Outage, outage_after

NOON = 1_790_000_000 // 86_400 * 86_400 + 12 * 3600.0


def test_an_outage_keeps_the_time_it_began_and_its_first_cause() -> None:
    first = outage_after(None, "connection\n refused", None, NOON)
    later = outage_after(first, "another cause", None, NOON + 600)
    assert later == first
    assert str(later) == "forge does not answer since 12:00 UTC (connection refused)"


def test_a_quota_says_until_when_and_is_another_thing_than_silence() -> None:
    silent = outage_after(None, "connection refused", None, NOON)
    quota = outage_after(silent, "used up", NOON + 2400, NOON + 60)
    assert str(quota) == "forge quota until 12:40 UTC"
    assert quota.since == NOON + 60
    longer = outage_after(quota, "used up", NOON + 4800, NOON + 120)
    assert str(longer) == "forge quota until 13:20 UTC"
    assert longer.since == quota.since


def test_another_day_is_named() -> None:
    assert str(Outage(NOON, NOON + 86_400, "")).startswith("forge quota until 2026-")
