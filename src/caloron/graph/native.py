"""Stages that are Python functions of this process."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from caloron.graph.datum import Datum
from caloron.graph.errors import (
    Cancelled,
    ExecutionError,
    JournalError,
    RunConflict,
    StageFailed,
    StageTimedOut,
)
from caloron.graph.held import Held
from caloron.graph.jsontext import Json, sha256
from caloron.graph.protocols import Call
from caloron.graph.scope import Settled
from caloron.graph.spec import StageSpec

#: A function of the input; one that also wants to know about its call takes it second, as a
#: parameter without a default or of the name `call`.
Function = Callable[[Json], Json] | Callable[[Json, Call], Json]

_LOOK_EVERY = 0.05


def hash_of_files(files: Iterable[Path]) -> str:
    """One hash for files, such as all modules of a package: for their names and their content."""
    listed = sorted(files)
    root = os.path.commonpath([file.parent for file in listed]) if listed else ""
    hashes = [f"{os.path.relpath(file, root)} {sha256(file.read_bytes())}" for file in listed]
    return sha256("\n".join(hashes))


class Functions:
    """Runs stages that were given to it as functions.

    `installed` is a hash of all the code that the functions rest on; with it, results that a
    cache kept are forgotten when that code changes. Without it, only the files of the functions
    themselves count.

    Functions that never change what they are given may get the values themselves (`shares`), and
    may answer with members that are held.
    """

    def __init__(self, *, installed: str = "", shares: bool = False) -> None:
        self._installed = installed
        self._shares = shares
        self._functions: dict[str, tuple[Function, bool]] = {}
        self._files: dict[str, str] = {}

    def add(self, stage: StageSpec, function: Function) -> None:
        self._functions[stage.id] = (function, _takes_call(function))

    def code_hash(self, stage: StageSpec) -> str | None:
        if stage.id not in self._functions:
            return None
        if self._installed:
            return self._installed
        return self._hash_of(self._functions[stage.id][0])

    def _hash_of(self, function: Function) -> str:
        from inspect import getfile, unwrap

        plain = unwrap(function)
        try:
            file = getfile(plain)
            if file not in self._files:
                self._files[file] = hash_of_files([Path(file)])
            return self._files[file]
        except (OSError, TypeError):
            # Typed in by hand, or compiled from no file: what it does is all there is of it.
            code = getattr(plain, "__code__", None)
            return sha256(repr(plain) if code is None else f"{code.co_code!r} {code.co_consts!r}")

    def run(self, stage: StageSpec, given: Datum, call: Call) -> Json | Datum:
        function, takes_call = self._functions[stage.id]

        def answer() -> Json:
            value = given.value if self._shares else json.loads(given.text)
            try:
                if takes_call:
                    return function(value, call)  # type: ignore[call-arg]
                return function(value)  # type: ignore[call-arg]
            except (ExecutionError, RunConflict, JournalError):
                raise
            except KeyError as error:
                raise StageFailed(f"{error} is missing", stage_id=stage.id) from error
            except Exception as error:
                said = str(error) or type(error).__name__
                raise StageFailed(said, stage_id=stage.id) from error

        seconds = call.seconds_left()
        found = answer() if seconds is None else within(seconds, answer, call)
        if self._shares and isinstance(found, dict):
            return _with_held(found)
        return found


def _takes_call(function: Function) -> bool:
    """Whether the call is the second argument; one with a default is only if its name says so."""
    from inspect import Parameter, signature

    named = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    second = list(signature(function).parameters.values())[1:2]
    return any(
        one.kind in named and (one.default is Parameter.empty or one.name == "call")
        for one in second
    )


def _with_held(answer: dict[str, Json]) -> Json | Datum:
    """An answer that holds something is not written only to be looked at."""
    return Datum(answer) if any(isinstance(one, Held) for one in answer.values()) else answer


def within(seconds: float, job: Callable[[], Json], call: Call) -> Json:
    """Does a job on a thread of its own and stops waiting for it when its time is over.

    Python cannot end a thread: a function that should really stop asks `call.stopped()`.
    """
    ended: list[Settled[Json]] = []
    done = threading.Event()

    def work() -> None:
        ended.append(Settled(job))
        done.set()

    threading.Thread(target=work, daemon=True).start()
    while (left := call.seconds_left()) is None or left > 0:
        if call.stopped():
            raise Cancelled("given up because a sibling failed")
        if done.wait(_LOOK_EVERY if left is None else min(left, _LOOK_EVERY)):
            return ended[0].value
    if call.stopped():
        raise Cancelled("given up because the run is over")
    raise StageTimedOut(f"not done after {round(seconds, 2):g} s", seconds=seconds)
