"""Runs a prepared graph, once or durably."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from caloron.graph.checker import check_value
from caloron.graph.errors import CheckError, ExecutionError, GraphError, Refused, RunConflict
from caloron.graph.json_text import Json, canonical, sha256
from caloron.graph.nodes import ROOT, node_json
from caloron.graph.prepare import Prepared
from caloron.graph.runtime.cancellation import Scope
from caloron.graph.runtime.executor import Executor
from caloron.graph.runtime.protocols import (
    Cache,
    Journal,
    RunHeader,
    StageRunner,
    Trace,
    Value,
)
from caloron.graph.runtime.stage_call import Frame, RunContext


class RunLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a run."""

    #: For each call of a stage; a runner may have a shorter limit of its own.
    stage_seconds: float | None = None
    run_seconds: float | None = None
    #: Besides the thread that runs the graph.
    threads: int = 32
    #: Maximum length of a value's JSON text. None disables the check and the encoding it needs.
    value_characters: int | None = 64 * 1024 * 1024


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a run."""

    cache: Cache | None = None
    journal: Journal | None = None
    #: Names a durable run; required with a journal.
    run_id: str = ""
    #: Make the failed calls of a durable run again, instead of failing the same way.
    retry_failed: bool = False
    limits: RunLimits = RunLimits()
    #: Put hashes of inputs and outputs into the trace; this needs the text of every value.
    hashes: bool = True
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    #: Replaces every wait, for tests.
    sleep: Callable[[float], None] | None = None


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a run, and how it was obtained."""

    answer: Value
    trace: Trace
    spent_cents: int
    cache_hits: int
    cache_misses: int

    @property
    def output(self) -> Json:
        """A copy of the answer, which the caller may change."""
        return json.loads(self.answer.text)


def run(
    prepared: Prepared, value: Json, runner: StageRunner, settings: Settings | None = None
) -> RunResult:
    """Run a graph on a value; an ExecutionError has the trace of the calls made before it."""
    settings = settings or Settings()
    input = _input(prepared, value)
    if settings.journal is None:
        return _execute(prepared, input, runner, settings)
    if not settings.run_id:
        raise RunConflict("a durable run needs a run id")
    journal, run_id = settings.journal, settings.run_id
    graph = sha256(canonical(node_json(prepared.root)))
    journal.begin(run_id, RunHeader(graph, input.hash, "strict" if prepared.strict else "noether"))
    try:
        if settings.retry_failed:
            journal.forget_failures(run_id)
        return _execute(prepared, input, runner, settings)
    finally:
        journal.end(run_id)


def _input(prepared: Prepared, value: Json) -> Value:
    """Encode the input; a strict graph is also checked for exactly this value."""
    try:
        input = Value.encode(value, allow_bigint=not prepared.strict)
    except GraphError as error:
        raise Refused([CheckError(error.reason, path="$.input")]) from error
    except (TypeError, ValueError, RecursionError) as error:
        message = f"the input is no JSON value: {error}"
        raise Refused([CheckError(message, path="$.input")]) from error
    if prepared.strict:
        errors = check_value(prepared.root, input.value, prepared.catalogue).errors
        if errors:
            raise Refused(errors)
    return input


def _execute(
    prepared: Prepared, input: Value, runner: StageRunner, settings: Settings
) -> RunResult:
    context = RunContext(prepared, runner, settings)
    started, began = settings.now(), settings.clock()
    seconds = settings.limits.run_seconds
    deadline = None if seconds is None else began + seconds
    frame = Frame(Scope(deadline=deadline, clock=settings.clock))

    def trace(*, failed: bool) -> Trace:
        return Trace(
            composition_id=prepared.composition_id,
            started_at=started.isoformat(timespec="milliseconds"),
            duration_ms=int((settings.clock() - began) * 1000),
            stages=tuple(frame.trace),
            failed=failed,
        )

    executor = Executor(context, settings.limits.threads)
    try:
        answer = executor.run(prepared.root, input, ROOT, frame)
    except ExecutionError as error:
        error.trace = trace(failed=True)
        raise
    return RunResult(
        answer=answer,
        trace=trace(failed=False),
        spent_cents=context.spent_cents,
        cache_hits=context.cache_hits,
        cache_misses=context.cache_misses,
    )
