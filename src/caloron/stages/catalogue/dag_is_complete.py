"""How far a sprint is; complete means that no task can move without a person."""

from __future__ import annotations

from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.shapes import plain, state_of
from caloron.stages.dag import dag_is_complete


def execute(given: Json) -> Json:
    return plain(dag_is_complete(state_of(given["state"])))


if __name__ == "__main__":
    alone(execute)
