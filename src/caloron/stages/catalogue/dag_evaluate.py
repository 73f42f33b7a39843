"""The next state of a sprint and the actions that follow from what was observed."""

from __future__ import annotations

from caloron.domain.facts import Fact
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.shapes import moment, plain, read, state_of
from caloron.stages.dag import dag_evaluate
from caloron.stages.sprint import EvaluateInput


def execute(given: Json) -> Json:
    facts: tuple[Fact, ...] = read(given.get("events") or [], tuple[Fact, ...], "events")
    decided = dag_evaluate(
        EvaluateInput(state=state_of(given["state"]), facts=facts, now=moment(given["now"]) or 0.0)
    )
    return plain({"state": decided.state, "actions": decided.actions, "moves": decided.moves})


if __name__ == "__main__":
    alone(execute)
