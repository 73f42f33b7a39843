"""What a run did: one entry for each call of a stage, with hashes instead of values."""

from __future__ import annotations

import msgspec

from caloron.graph.jsontext import Json


class StageTrace(msgspec.Struct, frozen=True, kw_only=True):
    """One call of one stage."""

    stage_id: str
    step_index: int
    path: str
    input_hash: str
    output_hash: str | None
    duration_ms: int
    #: Empty when it succeeded.
    failure: str = ""
    #: The same failure in the words of Noether.
    failure_as_noether: str = ""
    #: Answered from the cache, or from the journal of an earlier run that was cut short.
    source: str = "run"


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One run and its calls; a run that succeeded may hold calls that failed before a retry."""

    composition_id: str
    started_at: str
    duration_ms: int
    stages: tuple[StageTrace, ...]
    failed: bool

    @property
    def status(self) -> str:
        return "Failed" if self.failed else "Ok"


def trace_json(trace: Trace) -> Json:
    """The trace as Noether writes it: failed as soon as any call failed."""
    failed = any(stage.failure for stage in trace.stages)
    return {
        "composition_id": trace.composition_id,
        "started_at": trace.started_at,
        "duration_ms": trace.duration_ms,
        "status": "Failed" if failed else "Ok",
        "stages": [_stage_json(stage) for stage in trace.stages],
    }


def _stage_json(stage: StageTrace) -> Json:
    failed = {"Failed": {"code": "EXECUTION_ERROR", "message": stage.failure_as_noether}}
    return {
        "stage_id": stage.stage_id,
        "step_index": stage.step_index,
        "status": failed if stage.failure else "Ok",
        "duration_ms": stage.duration_ms,
        "input_hash": stage.input_hash,
        "output_hash": stage.output_hash,
    }
