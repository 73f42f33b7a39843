"""What all calls of a run share: lanes, budget, cache counts, and what a runner sees."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from caloron.graph.catalogue import Catalogue
from caloron.graph.datum import Datum
from caloron.graph.effects import cost_of
from caloron.graph.errors import BudgetExceeded, StageFailed, StageMissing
from caloron.graph.jsontext import Json
from caloron.graph.profile import Profile
from caloron.graph.protocols import Cache, Journal, RemoteCaller, StageRunner
from caloron.graph.scope import Scope
from caloron.graph.spec import StageSpec
from caloron.graph.trace import StageTrace


class Lane:
    """One thread's way through a graph: its steps, its trace, its attempts."""

    def __init__(self, scope: Scope, *, cached: bool, attempts: str = "") -> None:
        self.scope = scope
        self.cached = cached
        #: The number of the attempt for each Retry around, which tells repeated calls apart.
        self.attempts = attempts
        self.trace: list[StageTrace] = []
        self._steps = 0

    def beside(self, scope: Scope, *, cached: bool) -> Lane:
        """A way that starts here and counts its own steps."""
        return Lane(scope, cached=cached and self.cached, attempts=self.attempts)

    def next_step(self) -> int:
        self._steps += 1
        return self._steps - 1


class Budget:
    """What may still be spent; reserved before each call, never given back."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self.spent = 0

    def reserve(self, cents: int, path: str, stage_id: str) -> None:
        if self._limit is None:
            return
        with self._lock:
            if self.spent + cents > self._limit:
                raise BudgetExceeded(
                    spent=self.spent, limit=self._limit, path=path, stage_id=stage_id
                )
            self.spent += cents


class CacheCount:
    """How often the cache was asked and knew the answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def count(self, *, hit: bool) -> None:
        with self._lock:
            self.hits += hit
            self.misses += not hit


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """All that calls need and share."""

    profile: Profile
    catalogue: Catalogue
    runner: StageRunner
    remote: RemoteCaller
    budget: Budget
    cache: Cache | None
    cache_count: CacheCount
    journal: Journal | None
    run_id: str
    stage_seconds: float | None
    most_characters: int | None
    #: Kinds of effects that stages given as data may have; empty allows all.
    allowed: frozenset[str]
    checks_refinements: bool
    hashes: bool
    sleep: Callable[[float], None] | None


def is_cacheable(stage: StageSpec, profile: Profile) -> bool:
    """Whether an answer may be used again for the same input."""
    if not stage.declares("Pure"):
        return False
    only = all(effect.kind in ("Pure", "Fallible") for effect in stage.effects)
    return only or not profile.pure_means_only_pure


class OneCall:
    """The call as the runner sees it (`protocols.Call`)."""

    def __init__(self, around: Surroundings, scope: Scope, path: str, key: str) -> None:
        self._around = around
        self._scope = scope
        self.path = path
        self.key = key
        self.interrupted = False
        #: A stage was called from within that is not pure, whatever the outer one declares.
        self.impure = False
        limit = around.stage_seconds
        ends = [scope.deadline, None if limit is None else scope.clock() + limit]
        self._deadline = min((end for end in ends if end is not None), default=None)

    def seconds_left(self) -> float | None:
        return None if self._deadline is None else self._deadline - self._scope.clock()

    def stopped(self) -> bool:
        return self._scope.stopped() or self._scope.expired()

    def sleep(self, seconds: float) -> None:
        self._scope.check(self.path)
        if self._around.sleep is not None:
            self._around.sleep(seconds)
        else:
            self._scope.wait(seconds, self.path)

    def stage(self, reference: str, value: Json) -> Json:
        around, strict = self._around, self._around.profile.checks_values
        stage = around.catalogue.get(reference)
        if stage is None and strict:
            named = around.catalogue.by_name(reference)
            stage = named[0] if len(named) == 1 else None
        if stage is None:
            raise StageMissing(f"no stage is called {reference!r}", path=self.path)
        self._scope.check(self.path)
        if strict:
            self._allow(stage)
        self.impure = self.impure or not is_cacheable(stage, around.profile)
        answer = around.runner.run(stage, Datum(value), self)
        return answer.value if isinstance(answer, Datum) else answer

    def _allow(self, stage: StageSpec) -> None:
        """A stage that is given as data cannot do more than those that the graph names."""
        allowed = self._around.allowed
        for effect in stage.effects:
            if allowed and effect.kind not in allowed:
                raise StageFailed(
                    f"{stage.name or stage.id} may not run here: {effect.word} is not allowed",
                    path=self.path,
                    stage_id=stage.id,
                )
        self._around.budget.reserve(cost_of(stage.effects), self.path, stage.id)
