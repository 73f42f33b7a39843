"""One call of one stage: from the cache, from the journal, or executed; checked and traced."""

from __future__ import annotations

import json
import threading
from itertools import count
from typing import TYPE_CHECKING, Any

from caloron.graph.errors import (
    BudgetExceeded,
    Cancelled,
    ExecutionError,
    GraphError,
    JournalError,
    RunConflict,
    RunTimedOut,
    StageFailed,
    StageMissing,
    StageTimedOut,
    UnknownStage,
)
from caloron.graph.json_text import Json
from caloron.graph.nodes import RemoteStage, Stage
from caloron.graph.prepare import Prepared, missing_permissions, untestable_effect
from caloron.graph.runners.http import RemoteRunner
from caloron.graph.runtime.cancellation import Scope
from caloron.graph.runtime.protocols import (
    CacheKey,
    JournalEntry,
    StageRunner,
    StageTrace,
    Value,
)
from caloron.graph.stage import (
    REMOTE_EFFECTS,
    StageSpec,
    cost_of,
    define,
    with_config,
)
from caloron.graph.subtyping import find_type_error
from caloron.graph.types import NType

if TYPE_CHECKING:
    from caloron.graph.runtime.run import Settings

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


class RunContext:
    """Everything that the calls of a run share."""

    def __init__(self, prepared: Prepared, runner: StageRunner, settings: Settings) -> None:
        self.prepared = prepared
        self.settings = settings
        self.spent_cents = self.cache_hits = self.cache_misses = 0
        self._lock = threading.Lock()
        self._runner = runner
        self._remote = RemoteRunner()
        self._versions: dict[str, str] = {}

    def reserve(self, cents: int, path: str, stage_id: str) -> None:
        """Spend money before a call; it is never refunded."""
        with self._lock:
            spent, limit = self.spent_cents, self.prepared.budget_cents
            if limit is not None and spent + cents > limit:
                raise BudgetExceeded(spent=spent, limit=limit, path=path, stage_id=stage_id)
            self.spent_cents += cents

    def count_lookup(self, *, hit: bool) -> None:
        with self._lock:
            self.cache_hits += hit
            self.cache_misses += not hit

    def call_stage(self, node: Stage, input: Value, path: str, frame: Frame) -> Value:
        """Return the answer of the stage of a node."""
        stage = self.prepared.catalogue[node.id]
        if node.config is not None:
            input = Value(with_config(stage, node.config, input.value))
        return StageCall(self, self._runner, stage, input, path, frame).answer()

    def call_remote(self, node: RemoteStage, input: Value, path: str, frame: Frame) -> Value:
        """Return the answer of a stage on another machine."""
        stage = define(
            node.url, node.input, node.output, effects=REMOTE_EFFECTS, id=f"remote:{node.url}"
        )
        return StageCall(self, self._remote, stage, input, path, frame).answer()

    def wait(self, seconds: float, scope: Scope, path: str) -> None:
        if self.settings.sleep is not None:
            self.settings.sleep(seconds)
        else:
            scope.wait(seconds, path)

    def require_permission(self, stage: StageSpec, path: str) -> None:
        """A stage that is named by a value has no more permissions than one that a node names."""
        prepared = self.prepared
        missing = missing_permissions(
            stage.effects, stage.capabilities, prepared.allowed, prepared.granted
        )
        refused = [reason for _, reason in missing]
        if prepared.examples_only and (word := untestable_effect(stage)):
            refused.append(f"{word} is not run in an example")
        if refused:
            message = f"{stage.name or stage.id} may not run here: {refused[0]}"
            raise StageFailed(message, path=path, stage_id=stage.id)

    def code_version(self, runner: StageRunner, stage: StageSpec, path: str) -> str:
        if stage.id not in self._versions:
            version = runner.code_version(stage)
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


class StageCall:
    """One call of one stage; a runner sees it as a `protocols.Call`."""

    def __init__(
        self,
        context: RunContext,
        runner: StageRunner,
        stage: StageSpec,
        input: Value,
        path: str,
        frame: Frame,
        until: float | None = None,
    ) -> None:
        """`until` is the deadline of the stage that makes this call."""
        self.path = path
        self.key = frame.key(path)
        self.interrupted = False
        #: Set by the stage, or because it called a stage that is not pure.
        self.impure = False
        self._context = context
        self._settings = context.settings
        self._runner = runner
        self._stage = stage
        self._input = input
        self._frame = frame
        self._scope = frame.scope
        #: For the calls that this stage makes.
        self._inner_frame = frame.fork(frame.scope)
        self._inner_calls = count()
        #: Where the answer came from: run, cache or journal.
        self._source = "run"
        self._began = self._scope.clock()
        limit = self._settings.limits.stage_seconds
        ends = [self._scope.deadline, until, None if limit is None else self._began + limit]
        self._deadline = min((end for end in ends if end is not None), default=None)

    def seconds_left(self) -> float | None:
        return None if self._deadline is None else self._deadline - self._scope.clock()

    def stopped(self) -> bool:
        return self._scope.stopped() or self._scope.expired()

    def sleep(self, seconds: float) -> None:
        self._scope.check(self.path)
        self._context.wait(seconds, self._scope, self.path)

    def stage(self, reference: str, value: Json) -> Json:
        path = f"{self.path}[{next(self._inner_calls)}]"
        try:
            stage = self._context.prepared.catalogue.lookup(reference).stage
        except UnknownStage as error:
            raise StageMissing(error.reason, path=self.path) from error
        self._scope.check(path)
        left = self.seconds_left()
        if left is not None and left <= 0:
            # The calling stage may still run, in a thread that the run no longer waits for.
            raise StageTimedOut("the time of the stage that calls it is over", path=path)
        self._context.require_permission(stage, path)
        try:
            input = Value.encode(value, allow_bigint=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise StageFailed(f"the input is no JSON value: {error}", path=path) from error
        inner = StageCall(
            self._context, self._runner, stage, input, path, self._inner_frame, self._deadline
        )
        answer = inner.answer()
        # The journal does not record whether an answer was impure.
        if not stage.is_pure or inner.impure or inner._source == "journal":
            self.impure = True
        # The caller gets a copy: a change to it must not reach a cache or the trace.
        copied: Json = json.loads(answer.text)
        return copied

    def answer(self) -> Value:
        """Return the answer of the stage, and trace the call however it ends."""
        step = self._frame.next_step()
        try:
            answer = self._cached()
        except ExecutionError as error:
            self._trace(step, None, error.reason)
            raise
        self._trace(step, answer, "")
        return answer

    def _cached(self) -> Value:
        self._check_size(self._input)
        cache = self._settings.cache if self._stage.is_pure else None
        if cache is None:
            return self._journaled()
        version = self._context.code_version(self._runner, self._stage, self.path)
        key = CacheKey(self._stage.id, version, self._input.hash)
        cached = cache.get(key)
        self._context.count_lookup(hit=cached is not None)
        if cached is not None:
            self._source = "cache"
            return Value(text=cached)
        answer = self._journaled()
        if self._source == "run" and not self.impure:
            cache.put(key, answer.text)
        return answer

    def _journaled(self) -> Value:
        journal, run_id = self._settings.journal, self._settings.run_id
        if journal is None:
            return self._execute()
        entry = journal.recorded(run_id, self.key)
        if entry is not None:
            return self._replay(entry)
        if not self._stage.is_pure:
            self.interrupted = journal.intend(run_id, self.key)
        try:
            answer = self._execute()
        except _NOT_RECORDED:
            raise
        except ExecutionError as error:
            failed = self._entry(failure=(type(error).__name__, error.reason))
            journal.record(run_id, self.key, failed)
            raise
        journal.record(run_id, self.key, self._entry(output=answer.text))
        return answer

    def _entry(self, **result: Any) -> JournalEntry:
        return JournalEntry(
            stage_id=self._stage.id,
            input_hash=self._input.hash,
            duration_ms=self._duration_ms(),
            **result,
        )

    def _replay(self, entry: JournalEntry) -> Value:
        """Return the recorded answer, counted against the budget as it was then."""
        self._source = "journal"
        if (entry.stage_id, entry.input_hash) != (self._stage.id, self._input.hash):
            raise RunConflict(
                "the journal has this call with another input:"
                " a stage before it gave another answer than in the run that is resumed",
                path=self.path,
            )
        self._reserve()
        if entry.failure is None:
            return Value(text=entry.output)
        name, reason = entry.failure
        kind = StageTimedOut if name == "StageTimedOut" else StageFailed
        raise kind(reason, path=self.path, stage_id=self._stage.id)

    def _execute(self) -> Value:
        self._context.code_version(self._runner, self._stage, self.path)
        self._check_type(self._input, self._stage.input, "the input")
        self._reserve()
        answer = self._encode(self._run())
        self._check_size(answer)
        self._check_type(answer, self._stage.output, "the answer")
        return answer

    def _reserve(self) -> None:
        cents = cost_of(self._stage.effects)
        self._context.reserve(cents, self.path, self._stage.id)

    def _run(self) -> Json | Value:
        try:
            return self._runner.run(self._stage, self._input, self)
        except ExecutionError as error:
            if self._scope.expired() and not self._scope.stopped():
                raise RunTimedOut("the time of the run is over", path=self.path) from error
            self._attach_location(error)
            raise
        except (RunConflict, JournalError):
            # Raised by a call that the stage made; the stage is not at fault.
            raise
        except Exception as error:
            raise self._failed(f"{type(error).__name__}: {error}") from error

    def _attach_location(self, error: ExecutionError) -> None:
        """Runners do not know the path of the node that they run."""
        error.stage_id = error.stage_id or self._stage.id
        if not error.path:
            error.path = self.path
            error.args = (f"{self.path}: {error.reason}",)

    def _encode(self, value: Json | Value) -> Value:
        if isinstance(value, Value):
            return value
        try:
            return Value.encode(value)
        except GraphError as error:
            raise self._failed(error.reason) from error
        except (TypeError, ValueError, RecursionError) as error:
            raise self._failed(f"the answer is no JSON value: {error}") from error

    def _check_size(self, value: Value) -> None:
        limit = self._settings.limits.value_characters
        if limit is not None and (size := len(value.text)) > limit:
            raise self._failed(f"a value of {size} characters is over the limit of {limit}")

    def _check_type(self, value: Value, expected: NType, what: str) -> None:
        problem = find_type_error(value.value, expected)
        if problem is not None:
            raise self._failed(f"{what} is not what the stage declares: {problem}")

    def _failed(self, reason: str) -> StageFailed:
        return StageFailed(reason, path=self.path, stage_id=self._stage.id)

    def _duration_ms(self) -> int:
        return int((self._scope.clock() - self._began) * 1000)

    def _trace(self, step: int, answer: Value | None, failure: str) -> None:
        hashes = self._settings.hashes
        self._frame.trace.extend(self._inner_frame.trace)
        self._frame.trace.append(
            StageTrace(
                stage_id=self._stage.id,
                step_index=step,
                path=self.path,
                input_hash=self._input.hash if hashes else "",
                output_hash=answer.hash if answer and hashes else None,
                duration_ms=self._duration_ms(),
                failure=failure,
                source=self._source,
            )
        )
