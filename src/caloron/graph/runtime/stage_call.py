"""One call of one stage: from the cache, from the journal, or executed; checked and traced."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import msgspec

from caloron.graph.catalogue import Catalogue
from caloron.graph.checker.subtyping import find_type_error
from caloron.graph.errors import (
    BudgetExceeded,
    Cancelled,
    ExecutionError,
    GraphError,
    JournalError,
    RemoteCallFailed,
    RunConflict,
    RunTimedOut,
    StageFailed,
    StageMissing,
    StageTimedOut,
    UnknownStage,
)
from caloron.graph.json_text import Json
from caloron.graph.nodes import RemoteStage, Stage
from caloron.graph.prepare import untestable_effect
from caloron.graph.runtime.cancellation import Scope
from caloron.graph.runtime.protocols import (
    Cache,
    CacheKey,
    Journal,
    JournalEntry,
    RemoteClient,
    StageRunner,
    StageTrace,
    Value,
)
from caloron.graph.stage import CAPABILITIES, StageSpec, cost_of, with_config
from caloron.graph.types import NType

#: Errors caused by the run, not by the stage. They are not journaled, so a resumed run repeats the
#: call.
_NOT_RECORDED = (Cancelled, RunTimedOut, BudgetExceeded, StageMissing)


class Frame:
    """One thread's position in a graph: its steps, its trace, its attempts."""

    def __init__(self, scope: Scope, attempts: tuple[tuple[int, int], ...] = ()) -> None:
        self.scope = scope
        #: For each enclosing Retry: the length of the path of its stage, and the attempt.
        self.attempts = attempts
        self.trace: list[StageTrace] = []
        self._steps = 0

    def fork(self, scope: Scope) -> Frame:
        """A frame that starts here and counts its own steps."""
        return Frame(scope, self.attempts)

    def key(self, path: str) -> str:
        """The path with the number of the attempt behind each stage that is retried."""
        for length, attempt in reversed(self.attempts):
            path = f"{path[:length]}#{attempt}{path[length:]}"
        return path

    def next_step(self) -> int:
        self._steps += 1
        return self._steps - 1


class Budget:
    """The money that may be spent; reserved before each call, never given back."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self.spent = 0

    def reserve(self, cents: int, path: str, stage_id: str) -> None:
        with self._lock:
            if self._limit is not None and self.spent + cents > self._limit:
                raise BudgetExceeded(
                    spent=self.spent, limit=self._limit, path=path, stage_id=stage_id
                )
            self.spent += cents


class CacheCount:
    """Counts how often the cache had an answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def count(self, *, hit: bool) -> None:
        with self._lock:
            self.hits += hit
            self.misses += not hit


class RunContext(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the calls of a run share."""

    catalogue: Catalogue
    runner: StageRunner
    remote: RemoteClient
    budget: Budget
    cache: Cache | None
    cache_count: CacheCount
    journal: Journal | None
    run_id: str
    stage_seconds: float | None
    max_characters: int | None
    #: Kinds of effects that called stages may have; empty allows all.
    allowed: frozenset[str]
    #: Capabilities that called stages may need; empty allows all.
    granted: frozenset[str]
    #: Refuse called stages that an example must not run.
    examples_only: bool
    hashes: bool
    sleep: Callable[[float], None] | None

    def wait(self, seconds: float, scope: Scope, path: str) -> None:
        if self.sleep is not None:
            self.sleep(seconds)
        else:
            scope.wait(seconds, path)

    def require_permission(self, stage: StageSpec, path: str) -> None:
        """A stage that is named by a value has no more permissions than one that a node names."""
        refused = [
            f"{effect.word} is not allowed"
            for effect in stage.effects
            if self.allowed and effect.kind not in self.allowed
        ]
        refused += [
            f"{CAPABILITIES[needed]} is not granted"
            for needed in sorted(stage.capabilities)
            if self.granted and needed not in self.granted
        ]
        if self.examples_only and (word := untestable_effect(stage)):
            refused.append(f"{word} is not run in an example")
        if refused:
            message = f"{stage.name or stage.id} may not run here: {refused[0]}"
            raise StageFailed(message, path=path, stage_id=stage.id)


class _InnerAnswer(NamedTuple):
    """The answer of a call that a stage made."""

    answer: Value
    impure: bool


#: Makes a call for a stage: of this stage, with this input, at this path, until this time.
_Invoke = Callable[[StageSpec, Value, str, float | None], _InnerAnswer]


class CallHandle:
    """The call as the runner sees it (`protocols.Call`)."""

    def __init__(
        self,
        context: RunContext,
        scope: Scope,
        path: str,
        key: str,
        invoke: _Invoke,
        *,
        until: float | None,
    ) -> None:
        self._context = context
        self._scope = scope
        self._invoke = invoke
        self._calls = count()
        self.path = path
        self.key = key
        self.interrupted = False
        #: Set by the stage, or because it called a stage that is not pure.
        self.impure = False
        limit = context.stage_seconds
        ends = [scope.deadline, until, None if limit is None else scope.clock() + limit]
        self._deadline = min((end for end in ends if end is not None), default=None)

    def seconds_left(self) -> float | None:
        return None if self._deadline is None else self._deadline - self._scope.clock()

    def stopped(self) -> bool:
        return self._scope.stopped() or self._scope.expired()

    def sleep(self, seconds: float) -> None:
        self._scope.check(self.path)
        self._context.wait(seconds, self._scope, self.path)

    def stage(self, reference: str, value: Json) -> Json:
        path = f"{self.path}[{next(self._calls)}]"
        try:
            stage = self._context.catalogue.lookup(reference).stage
        except UnknownStage as error:
            raise StageMissing(error.reason, path=self.path) from error
        self._scope.check(path)
        left = self.seconds_left()
        if left is not None and left <= 0:
            # The calling stage may still run, in a thread that the run no longer waits for.
            raise StageTimedOut("the time of the stage that calls it is over", path=path)
        self._context.require_permission(stage, path)
        try:
            given = Value.encode(value, allow_bigint=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise StageFailed(f"the input is no JSON value: {error}", path=path) from error
        inner = self._invoke(stage, given, path, self._deadline)
        self.impure = self.impure or inner.impure
        # The caller gets a copy: a change to it must not reach a cache or the trace.
        answer: Json = json.loads(inner.answer.text)
        return answer


class StageInvoker:
    """Makes the calls of a run."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._versions: dict[str, str] = {}

    def stage(self, node: Stage, given: Value, path: str, frame: Frame) -> Value:
        """Return the answer of the stage of a node."""
        stage = self._context.catalogue.get(node.id)
        if stage is None:
            raise StageMissing("this stage is not in the catalogue", path=path, stage_id=node.id)
        if node.config is not None:
            given = Value(with_config(stage, node.config, given.value))
        return _LocalInvocation(self, self._context, given, path, frame).invoke(stage)

    def remote(self, node: RemoteStage, given: Value, path: str, frame: Frame) -> Value:
        """Return the answer of a stage on another machine."""
        return _RemoteInvocation(self, self._context, given, path, frame).invoke(node)

    def code_version(self, stage: StageSpec, path: str) -> str:
        if stage.id not in self._versions:
            version = self._context.runner.code_version(stage)
            if version is None:
                # Imported here: the table is needed for this message only.
                from caloron.graph.stdlib.library import NOT_IMPLEMENTED

                reason = NOT_IMPLEMENTED.get(stage.name, "")
                message = f"the stage {stage.name or stage.id} is not implemented here"
                raise StageMissing(
                    f"{message}: {reason}" if reason else message, path=path, stage_id=stage.id
                )
            self._versions[stage.id] = version
        return self._versions[stage.id]


class _Invocation:
    """The common part of a local and a remote call."""

    #: The id of the stage in the trace and the journal.
    stage_id = ""
    cents = 0
    effectful = True

    def __init__(
        self,
        invoker: StageInvoker,
        context: RunContext,
        given: Value,
        path: str,
        frame: Frame,
        until: float | None = None,
    ) -> None:
        self.invoker = invoker
        self.context = context
        self.given = given
        self.path = path
        self.frame = frame
        self.key = frame.key(path)
        #: The deadline of the stage that makes this call.
        self._until = until
        #: For the calls that this stage makes.
        self._inner_frame = frame.fork(frame.scope)
        #: Where the answer came from: run, cache or journal.
        self.source = "run"
        self._began = frame.scope.clock()

    def execute(self, call: CallHandle) -> Value:
        """Run the stage."""
        raise NotImplementedError

    def invoke_cached(self) -> Value:
        """Return the cached answer, or make the call."""
        return self.invoke_journaled()

    def invoke_traced(self) -> Value:
        step = self.frame.next_step()
        try:
            answer = self.invoke_cached()
        except ExecutionError as error:
            self._trace(step, None, error)
            raise
        self._trace(step, answer, None)
        return answer

    def invoke_journaled(self) -> Value:
        call = CallHandle(
            self.context,
            self.frame.scope,
            self.path,
            self.key,
            self._invoke_inner,
            until=self._until,
        )
        journal, run_id = self.context.journal, self.context.run_id
        if journal is None:
            return self.execute(call)
        entry = journal.recorded(run_id, self.key)
        if entry is not None:
            return self._replay(entry)
        if self.effectful:
            call.interrupted = journal.intend(run_id, self.key)
        try:
            answer = self.execute(call)
        except _NOT_RECORDED:
            raise
        except ExecutionError as error:
            failed = self._entry(failure=(type(error).__name__, error.reason))
            journal.record(run_id, self.key, failed)
            raise
        journal.record(run_id, self.key, self._entry(output=answer.text))
        return answer

    def _invoke_inner(
        self, stage: StageSpec, given: Value, path: str, until: float | None
    ) -> _InnerAnswer:
        call = _LocalInvocation(self.invoker, self.context, given, path, self._inner_frame, until)
        answer = call.invoke(stage)
        # The journal does not record whether an answer was impure.
        return _InnerAnswer(answer, call.effectful or call.impure or call.source == "journal")

    def blame_the_run(self, error: ExecutionError) -> None:
        """Raise RunTimedOut if the call ended because the time of the run is over."""
        if self.frame.scope.expired() and not self.frame.scope.stopped():
            raise RunTimedOut("the time of the run is over", path=self.path) from error

    def _entry(self, **result: Any) -> JournalEntry:
        return JournalEntry(
            stage_id=self.stage_id,
            input_hash=self.given.hash,
            duration_ms=self._duration_ms(),
            **result,
        )

    def _replay(self, entry: JournalEntry) -> Value:
        """Return the recorded answer, counted against the budget as it was then."""
        self.source = "journal"
        if (entry.stage_id, entry.input_hash) != (self.stage_id, self.given.hash):
            raise RunConflict(
                "the journal has this call with another input:"
                " a stage before it gave another answer than in the run that is resumed",
                path=self.path,
            )
        self.context.budget.reserve(self.cents, self.path, self.stage_id)
        if entry.failure is None:
            return Value(text=entry.output)
        name, reason = entry.failure
        if name == "RemoteCallFailed":
            url = self.stage_id.removeprefix("remote:")
            raise RemoteCallFailed(reason, url=url, path=self.path)
        kind = StageTimedOut if name == "StageTimedOut" else StageFailed
        raise kind(reason, path=self.path, stage_id=self.stage_id)

    def _duration_ms(self) -> int:
        return int((self.frame.scope.clock() - self._began) * 1000)

    def _trace(self, step: int, answer: Value | None, error: ExecutionError | None) -> None:
        hashes = self.context.hashes
        self.frame.trace.extend(self._inner_frame.trace)
        self.frame.trace.append(
            StageTrace(
                stage_id=self.stage_id,
                step_index=step,
                path=self.path,
                input_hash=self.given.hash if hashes else "",
                output_hash=answer.hash if answer and hashes else None,
                duration_ms=self._duration_ms(),
                failure=error.reason if error else "",
                source=self.source,
            )
        )


class _LocalInvocation(_Invocation):
    stage: StageSpec
    impure = False

    def invoke(self, stage: StageSpec) -> Value:
        self.stage = stage
        self.stage_id = stage.id
        self.cents = cost_of(stage.effects)
        self.effectful = not stage.is_pure
        return self.invoke_traced()

    def invoke_cached(self) -> Value:
        self._check_size(self.given)
        cache = None if self.effectful else self.context.cache
        if cache is None:
            return self.invoke_journaled()
        version = self.invoker.code_version(self.stage, self.path)
        key = CacheKey(self.stage.id, version, self.given.hash)
        cached = cache.get(key)
        self.context.cache_count.count(hit=cached is not None)
        if cached is not None:
            self.source = "cache"
            return Value(text=cached)
        answer = self.invoke_journaled()
        if self.source == "run" and not self.impure:
            cache.put(key, answer.text)
        return answer

    def execute(self, call: CallHandle) -> Value:
        self.invoker.code_version(self.stage, self.path)
        self._check_type(self.given, self.stage.input, "the input")
        self.context.budget.reserve(self.cents, self.path, self.stage.id)
        answer = self._encode(self._run(call))
        self.impure = call.impure
        self._check_size(answer)
        self._check_type(answer, self.stage.output, "the answer")
        return answer

    def _run(self, call: CallHandle) -> Json | Value:
        try:
            return self.context.runner.run(self.stage, self.given, call)
        except ExecutionError as error:
            self.blame_the_run(error)
            self._attach_location(error)
            raise
        except (RunConflict, JournalError):
            # Raised by a call that the stage made; the stage is not at fault.
            raise
        except Exception as error:
            raise self._failed(f"{type(error).__name__}: {error}") from error

    def _encode(self, value: Json | Value) -> Value:
        if isinstance(value, Value):
            return value
        try:
            return Value.encode(value)
        except GraphError as error:
            raise self._failed(error.reason) from error
        except (TypeError, ValueError, RecursionError) as error:
            raise self._failed(f"the answer is no JSON value: {error}") from error

    def _attach_location(self, error: ExecutionError) -> None:
        """Runners do not know the path of the node that they run."""
        error.stage_id = error.stage_id or self.stage.id
        if not error.path:
            error.path = self.path
            error.args = (f"{self.path}: {error.reason}",)

    def _failed(self, reason: str) -> StageFailed:
        return StageFailed(reason, path=self.path, stage_id=self.stage.id)

    def _check_size(self, value: Value) -> None:
        limit = self.context.max_characters
        if limit is not None and (size := len(value.text)) > limit:
            raise self._failed(f"a value of {size} characters is over the limit of {limit}")

    def _check_type(self, value: Value, of: NType, what: str) -> None:
        problem = find_type_error(value.value, of)
        if problem is not None:
            raise self._failed(f"{what} is not what the stage declares: {problem}")


class _RemoteInvocation(_Invocation):
    node: RemoteStage

    def invoke(self, node: RemoteStage) -> Value:
        self.node = node
        self.stage_id = f"remote:{node.url}"
        return self.invoke_traced()

    def execute(self, call: CallHandle) -> Value:
        url = self.node.url
        self._check_type(self.given.value, self.node.input, "the input")
        try:
            value = self.context.remote.call(url, self.given.text, call.seconds_left())
        except RemoteCallFailed as error:
            self.blame_the_run(error)
            raise RemoteCallFailed(error.reason, url=url, path=self.path) from error
        except ExecutionError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise RemoteCallFailed(reason, url=url, path=self.path) from error
        self._check_type(value, self.node.output, "the answer")
        return Value(value)

    def _check_type(self, value: Json, of: NType, what: str) -> None:
        problem = find_type_error(value, of)
        if problem is not None:
            reason = f"{what} is not what the node declares: {problem}"
            raise RemoteCallFailed(reason, url=self.node.url, path=self.path)
