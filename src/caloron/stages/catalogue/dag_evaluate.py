"""The next state of a sprint and the actions that follow from what was observed."""

from __future__ import annotations

from caloron.domain.evaluate import evaluate
from caloron.domain.facts import Fact
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.shapes import held, held_state, moment, read, state_of


def execute(given: Json) -> Json:
    facts: tuple[Fact, ...] = read(given.get("events") or (), tuple[Fact, ...], "events")
    decided = evaluate(state_of(given["state"]), facts, moment(given["now"]) or 0.0)
    return {
        "state": held_state(decided.state),
        "actions": held(decided.actions),
        "moves": held(decided.moves),
    }


if __name__ == "__main__":
    alone(execute)
