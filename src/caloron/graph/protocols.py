"""What this library asks of its surroundings; anything with these methods will do."""

from __future__ import annotations

from typing import Protocol

import msgspec

from caloron.graph.datum import Datum
from caloron.graph.jsontext import Json
from caloron.graph.spec import StageSpec


class Call(Protocol):
    """One call of a stage, as the runner sees it."""

    @property
    def path(self) -> str:
        """The JSON path of the node."""

    @property
    def key(self) -> str:
        """The same for every try to make this call in a durable run; good as a natural key."""

    @property
    def interrupted(self) -> bool:
        """An earlier process began this call and nobody knows how it ended: look before acting."""

    impure: bool
    """Set by a stage whose answer does not follow from its input alone: it is not remembered."""

    def seconds_left(self) -> float | None:
        """Until this call must have ended; None without a limit."""

    def stopped(self) -> bool:
        """Whether nobody waits for the result any more."""

    def sleep(self, seconds: float) -> None:
        """Waits, and raises as soon as the call is stopped."""

    def stage(self, reference: str, value: Json) -> Json:
        """Calls another stage, for stages that take stages as data."""


class StageRunner(Protocol):
    """Runs stages; the only part that knows how."""

    def code_hash(self, stage: StageSpec) -> str | None:
        """A hash of the code that would run now; None if this runner cannot run the stage."""

    def run(self, stage: StageSpec, given: Datum, call: Call) -> Json | Datum:
        """The stage's answer to an input; raises an ExecutionError. A Datum is taken as it is."""


class RemoteCaller(Protocol):
    """Calls a stage on another machine."""

    def call(self, url: str, text: str, seconds: float | None) -> Json:
        """The answer to an input, which is compact JSON; raises RemoteCallFailed."""


class CacheKey(msgspec.Struct, frozen=True):
    """What the result of a pure stage depends on."""

    stage_id: str
    code_hash: str
    input_hash: str


class Cache(Protocol):
    """Remembers results of pure stages as compact JSON; may forget any of them at any time."""

    def get(self, key: CacheKey) -> str | None: ...

    def put(self, key: CacheKey, text: str) -> None: ...


class RunHeader(msgspec.Struct, frozen=True):
    """What a durable run is a run of; the same for each process that goes on with it."""

    graph: str
    input_hash: str
    profile: str


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """How one call of a durable run ended."""

    stage_id: str
    input_hash: str
    duration_ms: int
    #: Compact JSON, if it succeeded.
    output: str | None = None
    #: The name of the error and its words, if it failed.
    failure: tuple[str, str] | None = None


class Journal(Protocol):
    """Keeps what a durable run has done, so that nothing recorded is done again."""

    def begin(self, run_id: str, header: RunHeader) -> None:
        """Takes the run for this process; raises RunInUse, or RunConflict if it is another one."""

    def recorded(self, run_id: str, key: str) -> Entry | None:
        """How a call ended, if it did."""

    def intend(self, run_id: str, key: str) -> bool:
        """Notes that a call begins; True if that was noted before."""

    def record(self, run_id: str, key: str, entry: Entry) -> None:
        """Keeps how a call ended; it must be on disk when this returns."""

    def forget_failures(self, run_id: str) -> None:
        """Lets the calls that failed last be made again, not those that a later one made up for."""

    def end(self, run_id: str) -> None:
        """Lets go of the run."""
