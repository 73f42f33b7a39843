"""What `noether run` prints: the same data, the same envelope, the same words for failures."""

from __future__ import annotations

from caloron.graph.canonical import optimise
from caloron.graph.errors import GraphError
from caloron.graph.jsontext import Json
from caloron.graph.plan import plan
from caloron.graph.policy import declared_cost
from caloron.graph.prepare import Prepared
from caloron.graph.run import Outcome
from caloron.graph.trace import trace_json
from caloron.graph.types import show

_META = {"duration_ms": 0, "version": "0.8.2"}


def run_data(prepared: Prepared, outcome: Outcome, *, memoized: bool = True) -> Json:
    """What a run that succeeded tells."""
    data: dict[str, Json] = {
        "composition_id": prepared.composition_id,
        "output": outcome.output,
        "effects": [effect.word for effect in prepared.effects],
        "trace": trace_json(outcome.trace),
        "warnings": list(prepared.warnings),
    }
    if outcome.spent_cents:
        data["spent_cents"] = outcome.spent_cents
    if outcome.cache_hits or not memoized:
        data["memoize"] = {
            "enabled": memoized,
            "hits": outcome.cache_hits,
            "misses": outcome.cache_misses,
        }
    return data


def dry_run_data(prepared: Prepared) -> Json:
    """What is known of a graph that may run, without running it."""
    optimised = optimise(prepared.root)
    planned = plan(optimised.root, prepared.catalogue)
    data: dict[str, Json] = {
        "mode": "dry-run",
        "composition_id": prepared.composition_id,
        "description": prepared.graph.description,
        "type_check": {
            "input": show(prepared.checked.input),
            "output": show(prepared.checked.output),
        },
        "effects": [effect.word for effect in prepared.effects],
        "optimizer": {
            "passes_applied": list(optimised.passes),
            "iterations": optimised.rounds,
            "hit_cap": optimised.hit_cap,
        },
        "plan": {
            "steps": len(planned.steps),
            "parallel_groups": len(planned.groups),
            "cost": {
                "total_time_ms_p50": planned.cost.time_ms_p50,
                "total_tokens_est": planned.cost.tokens_est,
                "total_memory_mb_peak": planned.cost.memory_mb,
            },
        },
        "warnings": list(prepared.warnings),
    }
    cost = declared_cost(prepared.root, prepared.catalogue)
    if cost:
        data["expected_cost_cents"] = cost
    return data


def success(data: Json) -> Json:
    """The envelope on the standard output."""
    return {"ok": True, "command": "noether", "data": data, "meta": dict(_META)}


def failure(error: GraphError) -> Json:
    """The envelope on the standard error; the exit code is that of the error."""
    told = {"code": "GENERAL_ERROR", "message": error.as_noether()}
    return {"ok": False, "command": "noether", "error": told, "meta": dict(_META)}
