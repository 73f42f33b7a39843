"""A catalogue of small Python stages, and a short way to run a graph over them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from caloron.graph.catalogue import Catalogue
from caloron.graph.prepare import Permissions, prepare
from caloron.graph.runners.functions import FunctionRunner
from caloron.graph.runtime.run import RunResult, Settings, run
from caloron.graph.stage import PURE, Effect, StageSpec, define
from caloron.graph.types import ANY, NType
from tests.support.noether import wrapped


class Bench:
    """Stages by name; counts how often each really ran."""

    def __init__(self) -> None:
        self.catalogue = Catalogue()
        self.functions = FunctionRunner()
        self.calls: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(
        self,
        name: str,
        function: Callable[..., Any],
        *effects: Effect,
        input: NType = ANY,
        output: NType = ANY,
    ) -> StageSpec:
        stage = define(
            name, input, output, effects=effects or (PURE,), implementation_hash=f"hash of {name}"
        )
        takes_call = function.__code__.co_argcount > 1

        def counted(value: Any, call: Any) -> Any:
            with self._lock:
                self.calls[name] = self.calls.get(name, 0) + 1
            return function(value, call) if takes_call else function(value)

        self.catalogue.add(stage)
        self.functions.add(stage, counted)
        return stage

    def run(
        self,
        root: Any,
        value: Any = None,
        *,
        strict: bool = True,
        permissions: Permissions | None = None,
        **settings: Any,
    ) -> RunResult:
        prepared = prepare(wrapped(root), self.catalogue, permissions, strict=strict)
        return run(prepared, value, self.functions, Settings(**settings))


def stage(name: str, **more: Any) -> dict[str, Any]:
    return {"op": "Stage", "id": name, **more}


def sequence(*stages: dict[str, Any]) -> dict[str, Any]:
    return {"op": "Sequential", "stages": list(stages)}


def parallel(**branches: dict[str, Any]) -> dict[str, Any]:
    return {"op": "Parallel", "branches": branches}


def retry(inner: dict[str, Any], attempts: int, delay_ms: int | None = None) -> dict[str, Any]:
    return {"op": "Retry", "stage": inner, "max_attempts": attempts, "delay_ms": delay_ms}


def const(value: Any) -> dict[str, Any]:
    return {"op": "Const", "value": json.loads(json.dumps(value))}
