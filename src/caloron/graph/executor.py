"""Runs the nodes of a graph: what each of the ten operations does with a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from caloron.graph.calls import Caller
from caloron.graph.datum import Datum
from caloron.graph.errors import (
    BudgetExceeded,
    Cancelled,
    ExecutionError,
    RetryExhausted,
    RunTimedOut,
    StageMissing,
)
from caloron.graph.jsontext import member
from caloron.graph.nodes import (
    Branch,
    Const,
    Fanout,
    Let,
    Merge,
    Node,
    Parallel,
    RemoteStage,
    Retry,
    Sequential,
    Stage,
)
from caloron.graph.scope import Slots, together
from caloron.graph.surroundings import Lane, Surroundings

_HOPELESS = (BudgetExceeded, StageMissing)


class Executor:
    """Walks a graph with a value."""

    def __init__(self, around: Surroundings, slots: Slots, *, no_attempt_fails: bool) -> None:
        self._around = around
        self._profile = around.profile
        self._caller = Caller(around)
        self._slots = slots
        self._no_attempt_fails = no_attempt_fails
        self._ops: dict[type[Any], Callable[[Any, Datum, str, Lane], Datum]] = {
            Stage: self._caller.stage,
            RemoteStage: self._caller.remote,
            Const: lambda node, *_: Datum(node.value),
            Sequential: self._sequential,
            Parallel: self._parallel,
            Branch: self._branch,
            Fanout: self._fanout,
            Merge: self._merge,
            Retry: self._retry,
            Let: self._let,
        }

    def run(self, node: Node, given: Datum, path: str, lane: Lane) -> Datum:
        """What a node gives for this value."""
        lane.scope.check(path)
        return self._ops[type(node)](node, given, path, lane)

    def _sequential(self, node: Sequential, given: Datum, path: str, lane: Lane) -> Datum:
        for index, stage in enumerate(node.stages):
            given = self.run(stage, given, f"{path}.stages[{index}]", lane)
        return given

    def _parallel(self, node: Parallel, given: Datum, path: str, lane: Lane) -> Datum:
        jobs = [
            (branch, _member_or_whole(given, name), member(f"{path}.branches", name))
            for name, branch in node.branches.items()
        ]
        results = self._together(jobs, lane)
        named = zip(node.branches, results, strict=True)
        return Datum({name: result.value for name, result in named})

    def _together(self, jobs: Sequence[tuple[Node, Datum, str]], lane: Lane) -> list[Datum]:
        """Runs nodes at once, each on a lane of its own; their traces stay in this order."""
        scope = lane.scope.within()
        cached = self._profile.caches_everywhere
        lanes = [lane.beside(scope, cached=cached) for _ in jobs]
        ended = together(
            [partial(self.run, *job, beside) for job, beside in zip(jobs, lanes, strict=True)],
            self._slots,
            scope,
            stop_on_failure=self._profile.cancels_siblings,
        )
        for one, beside in zip(ended, lanes, strict=True):
            if one.error is not None and not self._profile.traces_failed_branches:
                break
            lane.trace.extend(beside.trace)
        failures = [one.error for one in ended if one.error is not None]
        if failures:
            # A branch that was only given up is not the reason of the failure.
            raise next((one for one in failures if not isinstance(one, Cancelled)), failures[0])
        return [one.value for one in ended]

    def _branch(self, node: Branch, given: Datum, path: str, lane: Lane) -> Datum:
        chosen = self.run(node.predicate, given, f"{path}.predicate", lane)
        if chosen.value is True:
            return self.run(node.if_true, given, f"{path}.if_true", lane)
        return self.run(node.if_false, given, f"{path}.if_false", lane)

    def _fanout(self, node: Fanout, given: Datum, path: str, lane: Lane) -> Datum:
        source = self.run(node.source, given, f"{path}.source", lane)
        results = [
            self.run(target, source, f"{path}.targets[{index}]", lane)
            for index, target in enumerate(node.targets)
        ]
        return Datum([result.value for result in results])

    def _merge(self, node: Merge, given: Datum, path: str, lane: Lane) -> Datum:
        whole = given.value
        results: dict[str, Any] = {}
        for index, source in enumerate(node.sources):
            name = f"source_{index}"
            taken = Datum(whole.get(name)) if isinstance(whole, dict) else given
            results[name] = self.run(source, taken, f"{path}.sources[{index}]", lane).value
        return self.run(node.target, Datum(results), f"{path}.target", lane)

    def _retry(self, node: Retry, given: Datum, path: str, lane: Lane) -> Datum:
        if node.max_attempts == 0 and self._no_attempt_fails:
            raise RetryExhausted("no attempt is allowed", attempts=0, path=path, stage_id="unknown")
        outer = lane.attempts
        attempt = 1
        while True:
            within = f"{path}.stage"
            lane.attempts = (*outer, (len(within), attempt))
            try:
                return self.run(node.stage, given, within, lane)
            except ExecutionError as error:
                if attempt >= node.max_attempts or self._is_final(error):
                    raise
            finally:
                lane.attempts = outer
            self._wait(node.delay_ms, path, lane)
            attempt += 1

    def _is_final(self, error: ExecutionError) -> bool:
        if isinstance(error, Cancelled | RunTimedOut):
            return True
        return self._profile.gives_up_hopeless and isinstance(error, _HOPELESS)

    def _wait(self, delay_ms: int | None, path: str, lane: Lane) -> None:
        if not delay_ms or not self._profile.waits_between_attempts:
            return
        if self._around.sleep is not None:
            self._around.sleep(delay_ms / 1000)
        else:
            lane.scope.wait(delay_ms / 1000, path)

    def _let(self, node: Let, given: Datum, path: str, lane: Lane) -> Datum:
        jobs = [
            (binding, given, member(f"{path}.bindings", name))
            for name, binding in node.bindings.items()
        ]
        results = self._together(jobs, lane)
        outer: Mapping[str, Any] = given.value if isinstance(given.value, dict) else {}
        bound = {name: one.value for name, one in zip(node.bindings, results, strict=True)}
        return self.run(node.body, Datum({**outer, **bound}), f"{path}.body", lane)


def _member_or_whole(given: Datum, name: str) -> Datum:
    whole = given.value
    return Datum(whole[name]) if isinstance(whole, dict) and name in whole else given
