"""One call of one stage: from the cache, from the journal, or really; checked, paid and traced."""

from __future__ import annotations

from typing import Any

from caloron.graph.absent import ABSENT
from caloron.graph.datum import Datum
from caloron.graph.effects import cost_of
from caloron.graph.errors import (
    BudgetExceeded,
    Cancelled,
    ExecutionError,
    GraphError,
    JournalError,
    RemoteCallFailed,
    RetryExhausted,
    RunConflict,
    RunTimedOut,
    StageFailed,
    StageMissing,
    StageTimedOut,
)
from caloron.graph.jsontext import Json
from caloron.graph.nodes import RemoteStage, Stage
from caloron.graph.protocols import CacheKey, Entry
from caloron.graph.spec import StageSpec, with_config
from caloron.graph.surroundings import Inner, Lane, OneCall, Surroundings, is_cacheable
from caloron.graph.trace import StageTrace
from caloron.graph.types import NType
from caloron.graph.values import Misfit, misfit, outer_misfit

#: Ends that say nothing about the call itself: a durable run makes it again.
_NOT_AN_END = (Cancelled, RunTimedOut, BudgetExceeded, StageMissing)


class Caller:
    """Makes the calls of a run."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._hashes: dict[str, str] = {}

    def stage(self, node: Stage, given: Datum, path: str, lane: Lane) -> Datum:
        """The answer of a stage to what its node is given."""
        stage = self._around.catalogue.get(node.id)
        if stage is None:
            raise StageMissing("this stage is not in the catalogue", path=path, stage_id=node.id)
        if node.config is not None:
            by_field = self._around.profile.wraps_by_field
            given = Datum(with_config(stage, node.config, given.value, by_field=by_field))
        return _LocalCall(self, self._around, given, path, lane).of(stage)

    def remote(self, node: RemoteStage, given: Datum, path: str, lane: Lane) -> Datum:
        """The answer of a stage on another machine."""
        return _RemoteCall(self, self._around, given, path, lane).of(node)

    def code_hash(self, stage: StageSpec, path: str) -> str:
        if stage.id not in self._hashes:
            found = self._around.runner.code_hash(stage)
            if found is None:
                reason = f"nobody here can run the stage {stage.name or stage.id}"
                if stage.name in ABSENT:
                    reason += f": {ABSENT[stage.name]}"
                raise StageMissing(reason, path=path, stage_id=stage.id)
            self._hashes[stage.id] = found
        return self._hashes[stage.id]


class _Call:
    """What a call of a stage here and one elsewhere have in common."""

    #: What the trace and the journal call the stage.
    stage_id = ""
    cents = 0
    effectful = True

    def __init__(
        self,
        caller: Caller,
        around: Surroundings,
        given: Datum,
        path: str,
        lane: Lane,
        until: float | None = None,
    ) -> None:
        self.caller = caller
        self.around = around
        self.given = given
        self.path = path
        self.lane = lane
        self.key = lane.key(path)
        #: When the stage that makes this call must have ended.
        self._until = until
        #: For the calls that the stage of this call makes.
        self._inner_lane = lane.beside(lane.scope, cached=True)
        #: Where the answer came from: run, cache or journal.
        self.source = "run"
        self._began = lane.scope.clock()

    def make(self, call: OneCall) -> Datum:
        """Really makes the call."""
        raise NotImplementedError

    def find(self) -> Datum:
        """Makes the call, unless it is known how it ended."""
        return self.journaled()

    def traced(self) -> Datum:
        step = self.lane.next_step()
        try:
            answer = self.find()
        except ExecutionError as error:
            self._trace(step, None, error)
            raise
        self._trace(step, answer, None)
        return answer

    def journaled(self) -> Datum:
        call = OneCall(
            self.around, self.lane.scope, self.path, self.key, self._inner, until=self._until
        )
        journal, run_id = self.around.journal, self.around.run_id
        if journal is None:
            return self.make(call)
        entry = journal.recorded(run_id, self.key)
        if entry is not None:
            return self._again(entry)
        if self.effectful:
            call.interrupted = journal.intend(run_id, self.key)
        try:
            answer = self.make(call)
        except _NOT_AN_END:
            raise
        except ExecutionError as error:
            ended = self._entry(failure=(type(error).__name__, error.reason))
            journal.record(run_id, self.key, ended)
            raise
        journal.record(run_id, self.key, self._entry(output=answer.text))
        return answer

    def _inner(self, stage: StageSpec, given: Datum, path: str, until: float | None) -> Inner:
        call = _LocalCall(self.caller, self.around, given, path, self._inner_lane, until)
        answer = call.of(stage)
        # The journal does not record whether an answer was impure.
        return Inner(answer, call.effectful or call.impure or call.source == "journal")

    def blame_the_run(self, error: ExecutionError) -> None:
        """A call that ends because the time of the run is over says nothing about the stage."""
        if self.lane.scope.expired() and not self.lane.scope.stopped():
            raise RunTimedOut("the time of the run is over", path=self.path) from error

    def _entry(self, **ended: Any) -> Entry:
        return Entry(
            stage_id=self.stage_id, input_hash=self.given.hash, duration_ms=self._took(), **ended
        )

    def _again(self, entry: Entry) -> Datum:
        """What the journal knows, paid for as it was then."""
        self.source = "journal"
        if (entry.stage_id, entry.input_hash) != (self.stage_id, self.given.hash):
            raise RunConflict(
                "the journal holds this call with another input:"
                " a stage before it gave another answer than in the run that is resumed",
                path=self.path,
            )
        self.around.budget.reserve(self.cents, self.path, self.stage_id)
        if entry.failure is not None:
            raise _failure_again(*entry.failure, path=self.path, stage_id=self.stage_id)
        return Datum(text=entry.output)

    def _took(self) -> int:
        return int((self.lane.scope.clock() - self._began) * 1000)

    def _trace(self, step: int, answer: Datum | None, error: ExecutionError | None) -> None:
        hashes = self.around.hashes
        if self.around.profile.traces_inner_calls:
            self.lane.trace.extend(self._inner_lane.trace)
        self.lane.trace.append(
            StageTrace(
                stage_id=self.stage_id,
                step_index=step,
                path=self.path,
                input_hash=self.given.hash if hashes else "",
                output_hash=answer.hash if answer and hashes else None,
                duration_ms=self._took(),
                failure=error.reason if error else "",
                failure_as_noether=error.as_noether() if error else "",
                source=self.source,
            )
        )


class _LocalCall(_Call):
    stage: StageSpec
    impure = False

    def of(self, stage: StageSpec) -> Datum:
        self.stage = stage
        self.stage_id = stage.id
        self.cents = cost_of(stage.effects)
        self.effectful = not is_cacheable(stage, self.around.profile)
        return self.traced()

    def find(self) -> Datum:
        self._fit(self.given)
        cache = self.around.cache if self.lane.cached and not self.effectful else None
        if cache is None:
            return self.journaled()
        code = self.caller.code_hash(self.stage, self.path)
        key = CacheKey(self.stage.id, code, self.given.hash)
        known = cache.get(key)
        self.around.cache_count.count(hit=known is not None)
        if known is not None:
            self.source = "cache"
            return Datum(text=known)
        answer = self.journaled()
        if self.source == "run" and not self.impure:
            cache.put(key, answer.text)
        return answer

    def make(self, call: OneCall) -> Datum:
        self.caller.code_hash(self.stage, self.path)
        self._hold(self.given, self.stage.input, "the input")
        self.around.budget.reserve(self.cents, self.path, self.stage.id)
        answer = self._answer(self._run(call))
        self.impure = call.impure
        self._fit(answer)
        self._hold(answer, self.stage.output, "the answer")
        return answer

    def _run(self, call: OneCall) -> Json | Datum:
        try:
            return self.around.runner.run(self.stage, self.given, call)
        except ExecutionError as error:
            self.blame_the_run(error)
            self._place(error)
            raise
        except (RunConflict, JournalError):
            # An inner call met it; the stage is not at fault.
            raise
        except Exception as error:
            raise self._failed(f"{type(error).__name__}: {error}") from error

    def _answer(self, value: Json | Datum) -> Datum:
        if isinstance(value, Datum):
            return value
        try:
            wide = not self.around.profile.refuses_doubtful_text
            return Datum.answered(value, wide_integers=wide)
        except GraphError as error:
            raise self._failed(error.reason) from error
        except (TypeError, ValueError, RecursionError) as error:
            raise self._failed(f"the answer is no JSON value: {error}") from error

    def _place(self, error: ExecutionError) -> None:
        """A runner need not know where it is called."""
        error.stage_id = error.stage_id or self.stage.id
        if not error.path:
            error.path = self.path
            error.args = (f"{self.path}: {error.reason}",)

    def _failed(self, reason: str) -> StageFailed:
        return StageFailed(reason, path=self.path, stage_id=self.stage.id)

    def _fit(self, datum: Datum) -> None:
        most = self.around.most_characters
        if most is not None and (size := len(datum.text)) > most:
            raise self._failed(f"a value of {size} characters is over the limit of {most}")

    def _hold(self, datum: Datum, of: NType, what: str) -> None:
        """Holds a value to its type, as far as the profile does."""
        found: Misfit | None = None
        if self.around.profile.checks_values:
            found = misfit(datum.value, of)
        elif self.around.checks_refinements:
            found = outer_misfit(datum.value, of)
        if found is not None:
            raise self._failed(f"{what} is not what the stage declares: {found}")


class _RemoteCall(_Call):
    node: RemoteStage

    def of(self, node: RemoteStage) -> Datum:
        self.node = node
        self.stage_id = f"remote:{node.url}"
        return self.traced() if self.around.profile.traces_remote_calls else self.find()

    def make(self, call: OneCall) -> Datum:
        url = self.node.url
        self._hold(self.given.value, self.node.input, "the input")
        try:
            value = self.around.remote.call(url, self.given.text, call.seconds_left())
        except RemoteCallFailed as error:
            self.blame_the_run(error)
            raise RemoteCallFailed(error.reason, url=url, path=self.path) from error
        except ExecutionError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise RemoteCallFailed(reason, url=url, path=self.path) from error
        self._hold(value, self.node.output, "the answer")
        return Datum(value)

    def _hold(self, value: Json, of: NType, what: str) -> None:
        found = misfit(value, of) if self.around.profile.checks_values else None
        if found is not None:
            reason = f"{what} is not what the node declares: {found}"
            raise RemoteCallFailed(reason, url=self.node.url, path=self.path)


def _failure_again(name: str, reason: str, *, path: str, stage_id: str) -> ExecutionError:
    if name == "RemoteCallFailed":
        return RemoteCallFailed(reason, url=stage_id.removeprefix("remote:"), path=path)
    if name == "StageTimedOut":
        return StageTimedOut(reason, seconds=0, path=path, stage_id=stage_id)
    if name == "RetryExhausted":
        return RetryExhausted(reason, attempts=0, path=path, stage_id=stage_id)
    return StageFailed(reason, path=path, stage_id=stage_id)
