"""An agent with its cycles, and a clock that a test moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from caloron.cycles import Cycles, Location
from caloron.cycles.storage import Log
from caloron.store.lock import ProcessIdentity

#: A caller of whom only the process id and the host are known.
UNKNOWN = ProcessIdentity(7, "", "", "", "elsewhere")


class Agent:
    """The agent `allegro` with its cycles, and a clock."""

    def __init__(self, folder: Path, rotate_bytes: int = 1 << 20) -> None:
        self.places = Location("allegro", folder / "state/allegro.json", folder / "log/allegro.log")
        self.time = datetime(2026, 4, 6, 22, 0, tzinfo=UTC)
        self._rotate_bytes = rotate_bytes

    @property
    def cycles(self) -> Cycles:
        """Create the cycles anew, as another process does, without cached state."""
        log = Log(self.places.log, rotate_bytes=self._rotate_bytes)
        return Cycles(self.places, now=lambda: self.time, log=log)

    def wait(self, minutes: float) -> None:
        self.time += timedelta(minutes=minutes)

    def whole_cycle(self, step: str = "did it", next_target: str | None = None) -> int:
        self.cycles.begin(holder=UNKNOWN)
        self.cycles.act(step)
        ended = self.cycles.end(artefacts=("commit 1",), next_target=next_target)
        return ended.cycle_number


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)
