"""Random command sequences: the file always agrees with a small model."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from caloron.agentstate.instance import AgentInstance
from caloron.agentstate.records import TERMINAL
from caloron.errors import CaloronError
from tests.integration.agentstate.conftest import shift_clock

ITEMS = st.sampled_from(["a", "b", "c", "d"])
OWNERS = st.sampled_from(["forge", "other"])
LEASE_MS = 600_000


class Model:
    """The expected state of one errand."""

    def __init__(self, order: int, priority: int) -> None:
        self.order, self.priority = order, priority
        self.status = "pending"
        self.owner: str | None = None
        self.attempts, self.expires = 0, 0
        self.notes: dict | None = None
        self.events = ["created"]


class Commands(RuleBasedStateMachine):
    """Runs any command on any item, with time passing in between."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="caloron-model-")
        self.home = AgentInstance(Path(self._folder.name) / "agent")
        self.home.db.rows("PRAGMA synchronous = OFF")
        self.items: dict[str, Model] = {}
        self.now = 0
        self.tokens: dict[str, int] = {}

    def teardown(self) -> None:
        self.home.close()
        self._folder.cleanup()

    def free(self, model: Model) -> bool:
        stale = model.status == "in_flight" and model.expires <= self.now
        return model.status == "pending" or stale

    def allowed(self, item: str, when: bool, call) -> bool:
        """Check that the call succeeds exactly if the model allows it."""
        try:
            call()
        except CaloronError:
            assert not (item in self.items and when), item
            return False
        assert item in self.items, item
        assert when, item
        return True

    @rule(item=ITEMS, priority=st.integers(0, 2))
    def enqueue(self, item: str, priority: int) -> None:
        done = self.home.work_items.enqueue(item, "review", {}, priority=priority)
        assert done.inserted is (item not in self.items)
        # The id orders items of the same millisecond.
        self.items.setdefault(item, Model(done.item.created_at, priority))

    @rule(item=ITEMS, owner=OWNERS)
    def claim(self, item: str, owner: str) -> None:
        model = self.items.get(item)
        free = model is not None and self.free(model)
        if self.allowed(
            item, free, lambda: self._remember_token(self.home.work_items.claim(item, owner))
        ):
            self._claimed(item, owner)

    @rule(owner=OWNERS)
    def claim_next(self, owner: str) -> None:
        waiting = [(-m.priority, m.order, item) for item, m in self.items.items() if self.free(m)]
        claimed = self.home.work_items.claim_next(owner)
        assert (claimed.item.id if claimed else None) == (min(waiting)[2] if waiting else None)
        if claimed:
            self._remember_token(claimed)
            self._claimed(claimed.item.id, owner)

    def _remember_token(self, claimed) -> None:
        self.tokens[claimed.item.id] = claimed.lease.token

    def _claimed(self, item: str, owner: str) -> None:
        model = self.items[item]
        model.status, model.owner, model.expires = "in_flight", owner, self.now + LEASE_MS
        model.attempts += 1
        model.events.append("claimed")

    @rule(item=ITEMS, status=st.sampled_from(TERMINAL), fenced=st.booleans())
    def resolve(self, item: str, status: str, fenced: bool) -> None:
        model = self.items.get(item)
        token = self.tokens.get(item, 0) if fenced else None
        may = model is not None and model.status not in TERMINAL
        if fenced:
            may = may and model is not None and model.status == "in_flight"
        errands = self.home.work_items
        if self.allowed(item, may, lambda: errands.resolve(item, status, notes="end", token=token)):
            assert model is not None
            model.status = status
            before = model.notes
            if before is None:
                model.notes = {"text": "end"}
            elif before != {"text": "end"}:
                model.notes = before | {"resolution": "end"}
            model.events.append("resolved")

    @rule(item=ITEMS)
    def renew(self, item: str) -> None:
        model, token = self.items.get(item), self.tokens.get(item, -1)
        may = model is not None and model.status == "in_flight"
        if self.allowed(item, may, lambda: self.home.work_items.renew(item, token)):
            assert model is not None
            model.expires = self.now + LEASE_MS

    @rule(item=ITEMS)
    def release(self, item: str) -> None:
        self._move(item, ("in_flight",), "pending", "released",
                   lambda: self.home.work_items.release(item))  # fmt: skip

    @rule(item=ITEMS)
    def park(self, item: str) -> None:
        if self._move(item, ("pending", "in_flight"), "waiting_human", "parked",
                      lambda: self.home.work_items.park(item, "?")):  # fmt: skip
            self._annotated(item, {"question": "?"})

    @rule(item=ITEMS)
    def answer(self, item: str) -> None:
        if self._move(item, ("waiting_human",), "pending", "answered",
                      lambda: self.home.work_items.answer(item, "!")):  # fmt: skip
            self._annotated(item, {"answer": "!"})

    @rule(item=ITEMS)
    def reopen(self, item: str) -> None:
        self._move(item, TERMINAL, "pending", "reopened", lambda: self.home.work_items.reopen(item))

    @rule(item=ITEMS)
    def retry(self, item: str) -> None:
        model = self.items.get(item)
        may = model is not None and model.attempts < 3
        may = (
            may
            and model is not None
            and (model.status == "failed" or (model.status == "in_flight" and self.free(model)))
        )
        if self.allowed(item, may, lambda: self.home.work_items.retry(item)):
            assert model is not None
            model.status = "pending"
            model.events.append("reopened")

    @rule(item=ITEMS, key=st.sampled_from(["k", "l"]), value=st.integers(0, 3))
    def annotate(self, item: str, key: str, value: int) -> None:
        if self.allowed(item, True, lambda: self.home.work_items.annotate(item, {key: value})):
            self._annotated(item, {key: value})
            self.items[item].events.append("annotated")

    @rule(ms=st.sampled_from([1000, LEASE_MS + 60_000]))
    def wait(self, ms: int) -> None:
        shift_clock(self.home, ms)
        self.now += ms

    def _annotated(self, item: str, patch: dict) -> None:
        model = self.items[item]
        model.notes = (model.notes or {}) | patch

    def _move(self, item: str, sources, status: str, event: str, call) -> bool:
        model = self.items.get(item)
        if not self.allowed(item, model is not None and model.status in sources, call):
            return False
        assert model is not None
        model.status = status
        model.events.append(event)
        return True

    @invariant()
    def the_file_agrees_with_the_model(self) -> None:
        from caloron.agentstate.records import base_of

        for item, model in self.items.items():
            stored = self.home.work_items.get(item)
            assert stored.status == model.status
            assert stored.owner_agent == model.owner
            assert base_of(stored.notes) == (model.notes or {})
            assert self.home.work_items.lease(item).attempt == model.attempts
            result = [e.type.removeprefix("work_item_") for e in self.home.events.of(item)]
            assert result == model.events
        replayed = {entry.item.id for entry in self.home.work_items.replay()}
        assert replayed == {item for item, model in self.items.items() if self.free(model)}


Commands.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestRandomCommands = Commands.TestCase
