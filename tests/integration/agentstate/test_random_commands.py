"""Random command sequences: the file always agrees with a small model."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from caloron.agentstate.instance import AgentInstance
from caloron.agentstate.records import OPEN, STATUSES, TERMINAL, ClaimedItem, base_of
from caloron.errors import CaloronError
from tests.integration.agentstate.conftest import shift_clock

ITEMS = st.sampled_from(["a", "b", "c", "d"])
OWNERS = st.sampled_from(["forge", "other"])
LEASE_MS = 600_000


class Model:
    """The expected state of one work item; an unknown one has no status."""

    def __init__(self) -> None:
        self.order = self.priority = self.attempts = self.expires = 0
        self.token = -1
        self.status = ""
        self.owner: str | None = None
        self.notes: dict = {}
        self.events: list[str] = []


class Commands(RuleBasedStateMachine):
    """Runs any command on any item, with time passing in between."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="caloron-model-")
        self.home = AgentInstance(Path(self._folder.name) / "agent")
        self.home.db.rows("PRAGMA synchronous = OFF")
        self.items: defaultdict[str, Model] = defaultdict(Model)
        self.now = 0

    def teardown(self) -> None:
        self.home.close()
        self._folder.cleanup()

    def free(self, model: Model) -> bool:
        stale = model.status == "in_flight" and model.expires <= self.now
        return model.status == "pending" or stale

    def allowed(self, when: bool, call: Callable[[], Any]) -> Any:
        """Check that the call succeeds exactly if the model allows it; return its answer."""
        try:
            answer = call()
        except CaloronError:
            assert not when
            return None
        assert when
        return answer

    @rule(item=ITEMS, priority=st.integers(0, 2))
    def enqueue(self, item: str, priority: int) -> None:
        model = self.items[item]
        done = self.home.work_items.enqueue(item, "review", {}, priority=priority)
        assert done.inserted is (not model.status)
        if done.inserted:
            # The id orders items of the same millisecond.
            model.status, model.order, model.priority = "pending", done.item.created_at, priority
            model.events.append("created")

    @rule(item=ITEMS, owner=OWNERS)
    def claim(self, item: str, owner: str) -> None:
        free = self.free(self.items[item])
        self._claimed(self.allowed(free, lambda: self.home.work_items.claim(item, owner)), owner)

    @rule(owner=OWNERS)
    def claim_next(self, owner: str) -> None:
        waiting = [(-m.priority, m.order, item) for item, m in self.items.items() if self.free(m)]
        claimed = self.home.work_items.claim_next(owner)
        assert (claimed.item.id if claimed else None) == (min(waiting)[2] if waiting else None)
        self._claimed(claimed, owner)

    def _claimed(self, claimed: ClaimedItem | None, owner: str) -> None:
        if claimed is None:
            return
        model = self.items[claimed.item.id]
        model.status, model.owner, model.expires = "in_flight", owner, self.now + LEASE_MS
        model.token = claimed.lease.token
        model.attempts += 1
        model.events.append("claimed")

    @rule(item=ITEMS, status=st.sampled_from(TERMINAL), fenced=st.booleans())
    def resolve(self, item: str, status: str, fenced: bool) -> None:
        model, errands = self.items[item], self.home.work_items
        may = model.status == "in_flight" if fenced else model.status in OPEN
        token = model.token if fenced else None
        if self.allowed(may, lambda: errands.resolve(item, status, notes="end", token=token)):
            model.status = status
            if not model.notes:
                model.notes = {"text": "end"}
            elif model.notes != {"text": "end"}:
                model.notes = model.notes | {"resolution": "end"}
            model.events.append("resolved")

    @rule(item=ITEMS)
    def renew(self, item: str) -> None:
        model = self.items[item]
        may = model.status == "in_flight"
        if self.allowed(may, lambda: self.home.work_items.renew(item, model.token)):
            model.expires = self.now + LEASE_MS

    @rule(item=ITEMS)
    def release(self, item: str) -> None:
        self._move(item, ("in_flight",), "pending", "released",
                   lambda: self.home.work_items.release(item))  # fmt: skip

    @rule(item=ITEMS)
    def park(self, item: str) -> None:
        self._move(item, ("pending", "in_flight"), "waiting_human", "parked",
                   lambda: self.home.work_items.park(item, "?"), question="?")  # fmt: skip

    @rule(item=ITEMS)
    def answer(self, item: str) -> None:
        self._move(item, ("waiting_human",), "pending", "answered",
                   lambda: self.home.work_items.answer(item, "!"), answer="!")  # fmt: skip

    @rule(item=ITEMS)
    def reopen(self, item: str) -> None:
        self._move(item, TERMINAL, "pending", "reopened", lambda: self.home.work_items.reopen(item))

    @rule(item=ITEMS)
    def retry(self, item: str) -> None:
        model = self.items[item]
        stale = model.status == "in_flight" and self.free(model)
        sources = ("failed", "in_flight") if stale else ("failed",)
        self._move(item, sources if model.attempts < 3 else (), "pending", "reopened",
                   lambda: self.home.work_items.retry(item))  # fmt: skip

    @rule(item=ITEMS, key=st.sampled_from(["k", "l"]), value=st.integers(0, 3))
    def annotate(self, item: str, key: str, value: int) -> None:
        status, patch = self.items[item].status, {key: value}
        self._move(item, STATUSES, status, "annotated",
                   lambda: self.home.work_items.annotate(item, patch), **patch)  # fmt: skip

    @rule(ms=st.sampled_from([1000, LEASE_MS + 60_000]))
    def wait(self, ms: int) -> None:
        shift_clock(self.home, ms)
        self.now += ms

    def _move(
        self, item: str, sources: Sequence[str], status: str, event: str, call: Callable[[], Any],
        **notes: Any,
    ) -> None:  # fmt: skip
        model = self.items[item]
        if self.allowed(model.status in sources, call):
            model.status = status
            model.notes = model.notes | notes
            model.events.append(event)

    @invariant()
    def the_file_agrees_with_the_model(self) -> None:
        known = {item: model for item, model in self.items.items() if model.status}
        for item, model in known.items():
            stored = self.home.work_items.get(item)
            assert stored.status == model.status
            assert stored.owner_agent == model.owner
            assert base_of(stored.notes) == model.notes
            assert self.home.work_items.lease(item).attempt == model.attempts
            result = [e.type.removeprefix("work_item_") for e in self.home.events.of(item)]
            assert result == model.events
        replayed = {entry.item.id for entry in self.home.work_items.replay()}
        assert replayed == {item for item, model in known.items() if self.free(model)}


Commands.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestRandomCommands = Commands.TestCase
