"""Stages that call stages: again, instead, in time, one after the other."""

from __future__ import annotations

import time

from caloron.graph.errors import ExecutionError, RetryExhausted, StageFailed
from caloron.graph.jsontext import Json
from caloron.graph.protocols import Call
from caloron.graph.stdlib.given import field, items, number, optional, text

_MILLISECONDS = 5000


def retry(given: Json, call: Call) -> Json:
    stage, attempts = text(given, "stage_id"), max(1, int(number(given, "max_attempts")))
    delay = optional(given, "delay_ms")
    for attempt in range(1, attempts + 1):
        try:
            return call.stage(stage, field(given, "input"))
        except ExecutionError as error:
            last = error
        if delay and attempt < attempts:
            call.sleep(number(delay) / 1000)
    raise RetryExhausted(f"{attempts} attempts failed: {last.reason}", attempts=attempts)


def first_success(given: Json, call: Call) -> Json:
    """Fallback and race alike: they are tried in order, and the first answer counts."""
    last: ExecutionError | None = None
    for stage in items(given, "stages"):
        try:
            return call.stage(text(stage), field(given, "input"))
        except ExecutionError as error:
            last = error
    raise last or StageFailed("no stage is given")


def timeout(given: Json, call: Call) -> Json:
    """Looks at the clock when the stage has ended; it cannot interrupt it."""
    limit = optional(given, "timeout_ms")
    allowed = number(limit) if limit is not None else _MILLISECONDS
    began = time.monotonic()
    answer = call.stage(text(given, "stage_id"), field(given, "input"))
    if (time.monotonic() - began) * 1000 > allowed:
        raise StageFailed(f"the stage took more than {allowed:g} ms")
    return answer


def each(given: Json, call: Call) -> Json:
    stages, inputs = items(given, "stages"), items(given, "inputs")
    if len(stages) != len(inputs):
        raise StageFailed(f"{len(stages)} stages cannot take {len(inputs)} inputs")
    return [call.stage(text(stage), one) for stage, one in zip(stages, inputs, strict=True)]
