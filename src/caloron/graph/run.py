"""Runs a prepared graph, once or durably, and tells what came out and what was done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from caloron.graph.datum import Datum
from caloron.graph.errors import ExecutionError, Finding, GraphError, Refused, RunConflict
from caloron.graph.executor import Executor
from caloron.graph.flow import follow
from caloron.graph.jsontext import Json, canonical, sha256
from caloron.graph.memory import MemoryCache
from caloron.graph.nodes import ROOT, node_json
from caloron.graph.prepare import Prepared
from caloron.graph.protocols import Cache, Journal, RemoteCaller, RunHeader, StageRunner
from caloron.graph.remote import HttpCaller
from caloron.graph.scope import Scope, Slots
from caloron.graph.surroundings import Budget, CacheCount, Lane, Surroundings
from caloron.graph.trace import Trace
from caloron.graph.types import Known


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run may go."""

    #: For each call of a stage; a runner may have a shorter one of its own.
    stage_seconds: float | None = None
    run_seconds: float | None = None
    #: Besides the one that runs the graph.
    threads: int = 32
    #: The JSON text of any one value; None: as long as it may be, so that nobody writes it.
    value_characters: int | None = 64 * 1024 * 1024


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is given besides the graph, its input and somebody who runs stages."""

    cache: Cache | None = None
    #: The noether profile remembers pure results within a run; this turns it off.
    memoize: bool = True
    journal: Journal | None = None
    #: Names a durable run; needed with a journal.
    run_id: str = ""
    #: A durable run that failed makes its failed calls again, instead of failing the same way.
    retry_failed: bool = False
    remote: RemoteCaller | None = None
    limits: Limits = Limits()
    checks_refinements: bool = True
    #: Noether's optimiser makes a Retry of 0 attempts one attempt; without it, it fails.
    optimise: bool = True
    #: Whether the trace names what went in and out; it takes the text of every value.
    hashes: bool = True
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    #: Between attempts, and for stages that wait; given by tests.
    sleep: Callable[[float], None] | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run gave."""

    #: The answer as the last stage gave it.
    datum: Datum
    trace: Trace
    spent_cents: int
    cache_hits: int
    cache_misses: int

    @property
    def output(self) -> Json:
        """A value of the caller's own: what is done to it must not reach the graph or a cache."""
        return json.loads(self.datum.text)


def run(
    prepared: Prepared, value: Json, runner: StageRunner, settings: Settings | None = None
) -> Outcome:
    """Runs a graph on a value; an ExecutionError carries the trace of what was done before it."""
    settings = settings or Settings()
    given = _given(prepared, value)
    if settings.journal is None:
        return _Run(prepared, runner, settings).outcome(given)
    if not settings.run_id:
        raise RunConflict("a durable run needs a run id")
    journal, run_id = settings.journal, settings.run_id
    journal.begin(run_id, _header(prepared, given))
    try:
        if settings.retry_failed:
            journal.forget_failures(run_id)
        return _Run(prepared, runner, settings).outcome(given)
    finally:
        journal.end(run_id)


def _given(prepared: Prepared, value: Json) -> Datum:
    """The input, followed to all that will get it where the profile does so."""
    try:
        wide = not prepared.profile.refuses_doubtful_text
        given = Datum.answered(value, wide_integers=wide)
    except GraphError as error:
        raise Refused([Finding(error.reason, path="$.input")]) from error
    except (TypeError, ValueError, RecursionError) as error:
        message = f"the input is no JSON value: {error}"
        raise Refused([Finding(message, path="$.input")]) from error
    if prepared.profile.checks_values:
        findings = follow(prepared.root, Known(given.value), prepared.catalogue)
        if findings:
            raise Refused(findings)
    return given


def _header(prepared: Prepared, given: Datum) -> RunHeader:
    graph = sha256(canonical(node_json(prepared.root)))
    return RunHeader(graph, given.hash, prepared.profile.name)


class _Run:
    def __init__(self, prepared: Prepared, runner: StageRunner, settings: Settings) -> None:
        self._prepared = prepared
        self._settings = settings
        profile, limits = prepared.profile, settings.limits
        cache = settings.cache
        if cache is None and profile.memoizes and settings.memoize:
            cache = MemoryCache()
        self._around = Surroundings(
            profile=profile,
            catalogue=prepared.catalogue,
            runner=runner,
            remote=settings.remote or HttpCaller(),
            budget=Budget(prepared.budget_cents, always_counts=profile.counts_spending),
            cache=cache,
            cache_count=CacheCount(),
            journal=settings.journal,
            run_id=settings.run_id,
            stage_seconds=limits.stage_seconds,
            most_characters=limits.value_characters,
            allowed=prepared.allowed,
            granted=prepared.granted,
            harmless=prepared.harmless,
            checks_refinements=settings.checks_refinements,
            hashes=settings.hashes,
            sleep=settings.sleep,
        )

    def outcome(self, given: Datum) -> Outcome:
        settings, limits = self._settings, self._settings.limits
        started, began = settings.now(), settings.clock()
        deadline = None if limits.run_seconds is None else began + limits.run_seconds
        lane = Lane(Scope(deadline=deadline, clock=settings.clock), cached=True)
        slots = Slots(limits.threads)
        executor = Executor(self._around, slots, no_attempt_fails=not settings.optimise)

        def trace(*, failed: bool) -> Trace:
            return Trace(
                composition_id=self._prepared.composition_id,
                started_at=started.isoformat(timespec="milliseconds"),
                duration_ms=int((settings.clock() - began) * 1000),
                stages=tuple(lane.trace),
                failed=failed,
            )

        try:
            answer = executor.run(self._prepared.root, given, ROOT, lane)
        except ExecutionError as error:
            error.trace = trace(failed=True)
            raise
        count = self._around.cache_count
        return Outcome(
            datum=answer,
            trace=trace(failed=False),
            spent_cents=self._around.budget.spent,
            cache_hits=count.hits,
            cache_misses=count.misses,
        )
