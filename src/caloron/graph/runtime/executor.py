"""Executes the nodes of a graph: the meaning of the ten operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Semaphore
from typing import Any

from caloron.graph.errors import (
    BudgetExceeded,
    Cancelled,
    ExecutionError,
    RunTimedOut,
    StageMissing,
)
from caloron.graph.json_text import member
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
    children,
)
from caloron.graph.runtime.cancellation import run_concurrently
from caloron.graph.runtime.protocols import Value
from caloron.graph.runtime.stage_call import Frame, RunContext

#: Another attempt would end the same way.
_NOT_RETRIED = (Cancelled, RunTimedOut, BudgetExceeded, StageMissing)


class Executor:
    """Walks a graph with a value."""

    def __init__(self, context: RunContext, threads: int) -> None:
        self._context = context
        #: For threads besides the one that runs the graph; all branches share it.
        self._free_threads = Semaphore(threads)
        self._ops: dict[type[Any], Callable[[Any, Value, str, Frame], Value]] = {
            Stage: context.call_stage,
            RemoteStage: context.call_remote,
            Const: lambda node, *_: Value(node.value),
            Sequential: self._sequential,
            Parallel: self._parallel,
            Branch: self._branch,
            Fanout: self._fanout,
            Merge: self._merge,
            Retry: self._retry,
            Let: self._let,
        }

    def run(self, node: Node, input: Value, path: str, frame: Frame) -> Value:
        """Return the answer of a node to a value."""
        frame.scope.check(path)
        return self._ops[type(node)](node, input, path, frame)

    def _sequential(self, node: Sequential, input: Value, path: str, frame: Frame) -> Value:
        for at, stage in children(node, path):
            input = self.run(stage, input, at, frame)
        return input

    def _parallel(self, node: Parallel, input: Value, path: str, frame: Frame) -> Value:
        whole = input.value
        jobs = [
            (
                branch,
                Value(whole[name]) if isinstance(whole, dict) and name in whole else input,
                member(f"{path}.branches", name),
            )
            for name, branch in node.branches.items()
        ]
        answers = zip(node.branches, self._concurrently(jobs, frame), strict=True)
        return Value({name: answer.value for name, answer in answers})

    def _concurrently(self, jobs: Sequence[tuple[Node, Value, str]], frame: Frame) -> list[Value]:
        """Run nodes at once, each with a frame of its own; their traces stay in this order."""
        scope = frame.scope.child()
        frames = [frame.fork(scope) for _ in jobs]
        results = run_concurrently(
            [partial(self.run, *job, own) for job, own in zip(jobs, frames, strict=True)],
            self._free_threads,
            scope,
        )
        for own in frames:
            frame.trace.extend(own.trace)
        errors = list(filter(None, (result.exception() for result in results)))
        if errors:
            # A branch that was only cancelled is not the cause of the failure.
            raise next((error for error in errors if not isinstance(error, Cancelled)), errors[0])
        return [result.result() for result in results]

    def _branch(self, node: Branch, input: Value, path: str, frame: Frame) -> Value:
        chosen = self.run(node.predicate, input, f"{path}.predicate", frame)
        if chosen.value is True:
            return self.run(node.if_true, input, f"{path}.if_true", frame)
        return self.run(node.if_false, input, f"{path}.if_false", frame)

    def _fanout(self, node: Fanout, input: Value, path: str, frame: Frame) -> Value:
        (at, source), *targets = children(node, path)
        produced = self.run(source, input, at, frame)
        return Value([self.run(target, produced, at, frame).value for at, target in targets])

    def _merge(self, node: Merge, input: Value, path: str, frame: Frame) -> Value:
        *sources, (at, target) = children(node, path)
        whole = input.value
        answers: dict[str, Any] = {}
        for index, (source_path, source) in enumerate(sources):
            name = f"source_{index}"
            own = Value(whole.get(name)) if isinstance(whole, dict) else input
            answers[name] = self.run(source, own, source_path, frame).value
        return self.run(target, Value(answers), at, frame)

    def _retry(self, node: Retry, input: Value, path: str, frame: Frame) -> Value:
        outer, inner_path = frame.attempts, f"{path}.stage"
        attempt = 1
        while True:
            frame.attempts = (*outer, (len(inner_path), attempt))
            try:
                return self.run(node.stage, input, inner_path, frame)
            except ExecutionError as error:
                if attempt >= node.max_attempts or isinstance(error, _NOT_RETRIED):
                    raise
            finally:
                frame.attempts = outer
            if node.delay_ms:
                self._context.wait(node.delay_ms / 1000, frame.scope, path)
            attempt += 1

    def _let(self, node: Let, input: Value, path: str, frame: Frame) -> Value:
        *bindings, (at, body) = children(node, path)
        answers = self._concurrently(
            [(binding, input, where) for where, binding in bindings], frame
        )
        outer = input.value if isinstance(input.value, dict) else {}
        bound = {name: answer.value for name, answer in zip(node.bindings, answers, strict=True)}
        return self.run(body, Value({**outer, **bound}), at, frame)
