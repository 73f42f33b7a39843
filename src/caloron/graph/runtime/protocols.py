"""The interfaces of a run: values, calls, runners, caches, journals, traces."""

from __future__ import annotations

import json
from typing import Protocol

import msgspec

from caloron.graph.json_text import Json, compact, decode, may_have_bigint, sha256, unwrap
from caloron.graph.stage import StageSpec

_UNKNOWN = object()


class Value:
    """A JSON value that must not be changed, with its text and its hash, each made on demand.

    Its members may be in-process values. Stages that could change it get a copy.
    """

    __slots__ = ("_hash", "_text", "_value")

    def __init__(self, value: Json = _UNKNOWN, text: str | None = None) -> None:
        self._value = value
        self._text = text
        self._hash = ""

    @classmethod
    def encode(cls, value: Json, *, allow_bigint: bool = False) -> Value:
        """Encode an input or an answer; raises ValueError or TypeError if it is no JSON value."""
        text = compact(value)
        if may_have_bigint(text):
            text = compact(decode(text, allow_bigint=allow_bigint, what="the value"))
        return cls(text=text)

    @property
    def value(self) -> Json:
        if self._value is _UNKNOWN:
            self._value = json.loads(self._text or "null")
        return unwrap(self._value)

    @property
    def text(self) -> str:
        if self._text is None:
            self._text = compact(self._value)
        return self._text

    @property
    def hash(self) -> str:
        if not self._hash:
            self._hash = sha256(self.text)
        return self._hash


class Call(Protocol):
    """One call of a stage, as the runner sees it."""

    @property
    def path(self) -> str:
        """The JSON path of the node."""

    @property
    def key(self) -> str:
        """The same for every attempt to make this call in a durable run; usable as natural key."""

    @property
    def interrupted(self) -> bool:
        """An earlier process began this call and its result is unknown: check before acting."""

    impure: bool
    """Set by a stage whose answer depends on more than its input: the answer is not cached."""

    def seconds_left(self) -> float | None:
        """The time until this call must end; None without a limit."""

    def stopped(self) -> bool:
        """True if the result is no longer needed."""

    def sleep(self, seconds: float) -> None:
        """Wait; raises as soon as the call is stopped."""

    def stage(self, reference: str, value: Json) -> Json:
        """Call another stage, for stages that take stages as data."""


class StageRunner(Protocol):
    """Runs stages; the only part that knows how."""

    def code_version(self, stage: StageSpec) -> str | None:
        """Identify the code that would run; None if this runner cannot run the stage.

        Cached answers of another version are not used.
        """

    def run(self, stage: StageSpec, input: Value, call: Call) -> Json | Value:
        """Return the stage's answer to an input; raises an ExecutionError."""


class CacheKey(msgspec.Struct, frozen=True):
    """Everything that the answer of a pure stage depends on."""

    stage_id: str
    code_version: str
    input_hash: str


class Cache(Protocol):
    """Stores answers of pure stages as compact JSON; may drop any of them at any time."""

    def get(self, key: CacheKey) -> str | None: ...

    def put(self, key: CacheKey, text: str) -> None: ...


class RunHeader(msgspec.Struct, frozen=True):
    """Identifies a durable run; the same for each process that resumes it."""

    graph: str
    input_hash: str
    #: `strict` or `noether`.
    profile: str


class JournalEntry(msgspec.Struct, frozen=True):
    """The result of one call of a durable run."""

    stage_id: str
    input_hash: str
    duration_ms: int
    #: Compact JSON, if it succeeded.
    output: str | None = None
    #: The name of the error class and its message, if it failed.
    failure: tuple[str, str] | None = None


class Journal(Protocol):
    """Stores the results of a durable run, so that no recorded call is made again."""

    def begin(self, run_id: str, header: RunHeader) -> None:
        """Lock the run for this process; raises RunInUse, or RunConflict for another header."""

    def recorded(self, run_id: str, key: str) -> JournalEntry | None:
        """Return the result of a call, if it is recorded."""

    def intend(self, run_id: str, key: str) -> bool:
        """Record that a call begins; True if that was recorded before."""

    def record(self, run_id: str, key: str, entry: JournalEntry) -> None:
        """Store the result of a call; it must be on disk when this returns."""

    def forget_failures(self, run_id: str) -> None:
        """Drop the failed calls that nothing followed, so that they are made again."""

    def end(self, run_id: str) -> None:
        """Unlock the run."""


class StageTrace(msgspec.Struct, frozen=True, kw_only=True):
    """One call of one stage, with hashes instead of values."""

    stage_id: str
    step_index: int
    path: str
    input_hash: str
    output_hash: str | None
    duration_ms: int
    #: Empty if the call succeeded.
    failure: str = ""
    #: `run`, `cache`, or `journal` if an earlier process of a durable run made the call.
    source: str = "run"


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One run and its calls; a successful run may contain calls that failed before a retry."""

    composition_id: str
    started_at: str
    duration_ms: int
    stages: tuple[StageTrace, ...]
    failed: bool

    @property
    def status(self) -> str:
        return "Failed" if self.failed else "Ok"
