"""Stages about the forge: in a tick, polling means reading what the poller put into the inbox."""

from __future__ import annotations

from caloron.domain.facts import Fact
from caloron.stages.sprint import TickState


def github_poll_events(tick: TickState) -> tuple[Fact, ...]:
    """The facts that wait: forge snapshots, ends of work, effects done or refused."""
    return tick.loaded.facts
