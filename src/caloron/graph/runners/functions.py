"""Stages that are Python functions of this process, and a chain of runners."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import wait

from caloron.graph.errors import (
    Cancelled,
    ExecutionError,
    JournalError,
    RunConflict,
    StageFailed,
    StageTimedOut,
)
from caloron.graph.json_text import InProcessValue, Json
from caloron.graph.runtime.cancellation import run_in_background
from caloron.graph.runtime.protocols import Call, StageRunner, Value
from caloron.graph.stage import StageSpec

#: A function of the input. Its second parameter, without a default or with the name `call`, is the
#: call.
Function = Callable[[Json], Json] | Callable[[Json, Call], Json]

_POLL_S = 0.05


class FunctionRunner:
    """Runs stages that are Python functions.

    `version` names the code of all functions: answers that a cache stored for another version are
    not used. `shares_values` passes the values themselves to the functions instead of copies, for
    functions that never change their input; their answers may contain in-process values.
    """

    def __init__(self, *, version: str = "1", shares_values: bool = False) -> None:
        self._version = version
        self._shares_values = shares_values
        self._functions: dict[str, tuple[Function, bool]] = {}

    def add(self, stage: StageSpec, function: Function) -> None:
        self._functions[stage.id] = (function, _takes_call(function))

    def code_version(self, stage: StageSpec) -> str | None:
        return self._version if stage.id in self._functions else None

    def run(self, stage: StageSpec, input: Value, call: Call) -> Json | Value:
        function, takes_call = self._functions[stage.id]

        def answer() -> Json:
            value = input.value if self._shares_values else json.loads(input.text)
            try:
                if takes_call:
                    return function(value, call)  # type: ignore[call-arg]
                return function(value)  # type: ignore[call-arg]
            except (ExecutionError, RunConflict, JournalError):
                raise
            except KeyError as error:
                raise StageFailed(f"{error} is missing", stage_id=stage.id) from error
            except Exception as error:
                message = str(error) or type(error).__name__
                raise StageFailed(message, stage_id=stage.id) from error

        seconds = call.seconds_left()
        result = answer() if seconds is None else run_with_timeout(seconds, answer, call)
        if self._shares_values and isinstance(result, dict):
            in_process = any(isinstance(part, InProcessValue) for part in result.values())
            # Skip JSON encoding when the answer contains in-process values.
            return Value(result) if in_process else result
        return result


def _takes_call(function: Function) -> bool:
    """True if the second parameter is the call: it has no default, or the name `call`."""
    from inspect import Parameter, signature

    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    second = list(signature(function).parameters.values())[1:2]
    return any(
        parameter.kind in positional
        and (parameter.default is Parameter.empty or parameter.name == "call")
        for parameter in second
    )


def run_with_timeout(seconds: float, job: Callable[[], Json], call: Call) -> Json:
    """Run a job on a thread of its own, and stop waiting when its time is over.

    A function that should really end then checks `call.stopped()`.
    """
    background = run_in_background(job)
    while (left := call.seconds_left()) is None or left > 0:
        if call.stopped():
            raise Cancelled("cancelled because a sibling failed")
        wait([background], _POLL_S if left is None else min(left, _POLL_S))
        if background.done():
            return background.result()
    if call.stopped():
        raise Cancelled("cancelled because the run is over")
    raise StageTimedOut(f"not done after {round(seconds, 2):g} s")


class RunnerChain:
    """Several runners as one: each stage goes to the first that can run it."""

    def __init__(self, *runners: StageRunner) -> None:
        self._runners = runners

    def code_version(self, stage: StageSpec) -> str | None:
        versions = (runner.code_version(stage) for runner in self._runners)
        return next((version for version in versions if version is not None), None)

    def run(self, stage: StageSpec, input: Value, call: Call) -> Json | Value:
        able = (runner for runner in self._runners if runner.code_version(stage) is not None)
        return next(able).run(stage, input, call)
