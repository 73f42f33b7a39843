"""What one tick came to, before it is saved."""

from __future__ import annotations

from caloron.graph.held import opened
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.shapes import joined


def execute(given: Json) -> Json:
    evaluated, supervised, executed, poll = (
        opened(given.get(name)) or {} for name in ("eval", "supervisor", "execute_result", "poll")
    )
    told = [*(supervised.get("steps") or []), *(executed.get("actions_taken") or [])]
    return {
        "actions_taken": told,
        "errors": executed.get("errors") or [],
        # Those who watch decide after the events, on the state that these left.
        "state": supervised.get("state") or evaluated.get("state"),
        "polled_at": poll.get("polled_at") or "",
        "interventions": supervised.get("updated_interventions") or {},
        "rows": executed.get("rows") or [],
        "moves": joined(evaluated.get("moves"), supervised.get("moves")),
        "now": given.get("now"),
        "loaded": given.get("loaded"),
    }


if __name__ == "__main__":
    alone(execute)
