"""Sixteen processes at one agent's queue: nothing is claimed twice, nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from caloron.agentstate.instance import AgentInstance
from tests.support.claimers import claimed_by_all, fill


@pytest.mark.long
def test_sixteen_processes_claim_ten_thousand_items_each_exactly_once(tmp_path: Path) -> None:
    items = fill(tmp_path / "agent", 10_000)
    claimed = claimed_by_all(tmp_path / "agent", 16)
    assert claimed == {(item, 1): 1 for item in items}
    with AgentInstance(tmp_path / "agent") as home:
        counted = "SELECT type, count(*) FROM events GROUP BY type ORDER BY type"
        assert [tuple(row) for row in home.db.rows(counted)] == [
            ("work_item_claimed", 10_000),
            ("work_item_resolved", 10_000),
        ]
