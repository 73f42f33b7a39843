"""What all calls of a run share: lanes, budget, cache counts, and what a runner sees."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

import msgspec

from caloron.graph.catalogue import Catalogue
from caloron.graph.datum import Datum
from caloron.graph.effects import CAPABILITIES
from caloron.graph.errors import (
    BudgetExceeded,
    StageFailed,
    StageMissing,
    StageTimedOut,
    UnknownStage,
)
from caloron.graph.jsontext import Json
from caloron.graph.policy import reaches
from caloron.graph.profile import Profile
from caloron.graph.protocols import Cache, Journal, RemoteCaller, StageRunner
from caloron.graph.resolve import lookup
from caloron.graph.scope import Scope
from caloron.graph.spec import StageSpec
from caloron.graph.trace import StageTrace


class Lane:
    """One thread's way through a graph: its steps, its trace, its attempts."""

    def __init__(
        self, scope: Scope, *, cached: bool, attempts: tuple[tuple[int, int], ...] = ()
    ) -> None:
        self.scope = scope
        self.cached = cached
        #: For each Retry around: the length of the path of its stage, and the attempt.
        self.attempts = attempts
        self.trace: list[StageTrace] = []
        self._steps = 0

    def beside(self, scope: Scope, *, cached: bool) -> Lane:
        """A way that starts here and counts its own steps."""
        return Lane(scope, cached=cached and self.cached, attempts=self.attempts)

    def key(self, path: str) -> str:
        """The path with the number of the attempt behind each stage that is retried."""
        for length, attempt in reversed(self.attempts):
            path = f"{path[:length]}#{attempt}{path[length:]}"
        return path

    def next_step(self) -> int:
        self._steps += 1
        return self._steps - 1


class Budget:
    """What may still be spent; reserved before each call, never given back."""

    def __init__(self, limit: int | None, *, always_counts: bool) -> None:
        self._limit = limit
        self._counts = always_counts or limit is not None
        self._lock = threading.Lock()
        self.spent = 0

    def reserve(self, cents: int, path: str, stage_id: str) -> None:
        if not self._counts:
            return
        with self._lock:
            if self._limit is not None and self.spent + cents > self._limit:
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
    #: Stages given as data are refused that an example must not try.
    harmless: bool
    #: Capabilities that stages given as data may need; empty allows all.
    granted: frozenset[str]
    checks_refinements: bool
    hashes: bool
    sleep: Callable[[float], None] | None


def is_cacheable(stage: StageSpec, profile: Profile) -> bool:
    """Whether an answer may be used again for the same input."""
    if not stage.declares("Pure"):
        return False
    only = all(effect.kind in ("Pure", "Fallible") for effect in stage.effects)
    return only or not profile.pure_means_only_pure


class Inner(NamedTuple):
    """How a call ended that a stage made."""

    answer: Datum
    impure: bool


#: Makes a call for a stage: of this stage, with this input, at this path, until this moment.
Invoke = Callable[[StageSpec, Datum, str, float | None], Inner]


class OneCall:
    """The call as the runner sees it (`protocols.Call`)."""

    def __init__(
        self,
        around: Surroundings,
        scope: Scope,
        path: str,
        key: str,
        invoke: Invoke,
        *,
        until: float | None,
    ) -> None:
        self._around = around
        self._scope = scope
        self._invoke = invoke
        self._calls = count()
        self.path = path
        self.key = key
        self.interrupted = False
        #: The stage says so, or called one that is not pure, whatever it declares.
        self.impure = False
        limit = around.stage_seconds
        ends = [scope.deadline, until, None if limit is None else scope.clock() + limit]
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
        path = f"{self.path}[{next(self._calls)}]"
        stage = self._stage(reference)
        self._scope.check(path)
        left = self.seconds_left()
        if left is not None and left <= 0:
            # The caller may still run, in a thread that the run no longer waits for.
            raise StageTimedOut("the time of the stage that calls it is over", seconds=0, path=path)
        self._allow(stage, path)
        try:
            given = Datum.answered(value, wide_integers=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise StageFailed(f"the input is no JSON value: {error}", path=path) from error
        inner = self._invoke(stage, given, path, self._deadline)
        self.impure = self.impure or inner.impure
        # The caller gets its own copy: a change to it must not reach a cache or the trace.
        answer: Json = json.loads(inner.answer.text)
        return answer

    def _stage(self, reference: str) -> StageSpec:
        """The stage that a node with this reference would mean; Noether takes full ids alone."""
        profile, catalogue = self._around.profile, self._around.catalogue
        if not profile.resolves_widely and reference not in catalogue:
            raise StageMissing(f"no stage is called {reference!r}", path=self.path)
        try:
            return lookup(reference, catalogue, profile)
        except UnknownStage as error:
            raise StageMissing(error.reason, path=self.path) from error

    def _allow(self, stage: StageSpec, path: str) -> None:
        """A stage that is given as data cannot do more than those that the graph names."""
        allowed, granted = self._around.allowed, self._around.granted
        refused = [
            f"{effect.word} is not allowed"
            for effect in stage.effects
            if allowed and effect.kind not in allowed
        ]
        refused += [
            f"{CAPABILITIES[needed]} is not granted"
            for needed in sorted(stage.capabilities)
            if granted and needed not in granted
        ]
        if self._around.harmless and (word := reaches(stage)):
            refused.append(f"{word} is not tried in an example")
        if refused:
            raise StageFailed(
                f"{stage.name or stage.id} may not run here: {refused[0]}",
                path=path,
                stage_id=stage.id,
            )
