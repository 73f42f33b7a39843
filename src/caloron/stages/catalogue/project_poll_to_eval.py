"""What was polled, as `dag_evaluate` takes it."""

from __future__ import annotations

from caloron.graph.held import opened
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone


def execute(given: Json) -> Json:
    poll, threshold = opened(given.get("poll")) or {}, given.get("stall_threshold_m")
    return {
        "state": given["state"],
        "events": poll.get("events") or [],
        "now": given.get("now"),
        "stall_threshold_m": 20 if threshold is None else threshold,
    }


if __name__ == "__main__":
    alone(execute)
