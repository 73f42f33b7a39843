"""Random wakes, crashes, damages and restores: numbers rise, and the log determines the state."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from caloron.cycles.state import CycleState, apply
from caloron.cycles.storage import Log
from caloron.errors import CaloronError
from tests.integration.agentstate.cycles.conftest import UNKNOWN, Agent


class Wakes(RuleBasedStateMachine):
    """A model of two facts: the highest number, and whether a cycle is open."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="caloron-wakes-")
        self.folder = Path(self._folder.name)
        self.agent = Agent(self.folder / "agent", rotate_bytes=1500)
        self.number = 0
        self.open = False
        self.silent = False
        self.last = ""

    def teardown(self) -> None:
        self._folder.cleanup()

    def taken(self, may: bool, call) -> bool:
        try:
            call()
        except CaloronError:
            assert not may
            return False
        assert may
        return True

    @rule(work=st.sampled_from([None, "issue 4", ""]))
    def begin(self, work: str | None) -> None:
        may = not self.open or self.silent
        if self.taken(may, lambda: self.agent.cycles.begin(holder=UNKNOWN, work=work)):
            self.number += 1
            self.open, self.silent = True, False

    @rule(action=st.sampled_from(["pushed", "tested"]))
    def act(self, action: str) -> None:
        may = self.open and not self.silent
        if self.taken(may, lambda: self.agent.cycles.act(action, artefact="x")):
            self.last = action

    @rule()
    def end(self) -> None:
        may = self.open and not self.silent
        if self.taken(may, lambda: self.agent.cycles.end(reason="r", next_target="go")):
            self.open = False

    @rule(minutes=st.sampled_from([1, 21]))
    def wait(self, minutes: int) -> None:
        self.agent.wait(minutes)
        self.silent = self.silent or minutes > 20

    @rule(damage=st.sampled_from([b"", b"{", b'{"version": 7}', None]))
    def damage_the_state(self, damage: bytes | None) -> None:
        state = self.agent.places.state
        # The state can only be rebuilt from a log.
        if state.exists() and self.agent.places.log.exists():
            state.unlink() if damage is None else state.write_bytes(damage)

    @rule()
    def tear_the_log(self) -> None:
        if self.agent.places.log.exists():
            with self.agent.places.log.open("ab") as log:
                log.write(b'{"at": "now", "cycle": 1000, "event"')

    @rule()
    def restore_an_old_state(self) -> None:
        state, kept = self.agent.places.state, self.folder / "kept.json"
        if kept.exists() and self.agent.places.log.exists():
            shutil.copy(kept, state)
        elif state.exists():
            shutil.copy(state, kept)

    @rule()
    def recover(self) -> None:
        may = not self.open or self.silent
        if self.taken(may, self.agent.cycles.recover):
            self.open = self.silent = False

    @invariant()
    def the_state_agrees_with_the_log(self) -> None:
        state = self.agent.cycles.load().state
        assert state.cycle_number == self.number
        assert (state.status == "open") is self.open
        assert state.last_action == self.last
        folded = CycleState("allegro")
        for entry in Log(self.agent.places.log).entries():
            folded = apply(folded, entry)
        if folded.seq:
            assert folded == state


Wakes.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestRandomWakes = Wakes.TestCase
