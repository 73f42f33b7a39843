"""Puts a label on an issue; one that is there already stays."""

from __future__ import annotations

from caloron.errors import CaloronError
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.at_forge import the_forge


def execute(given: Json) -> Json:
    """Whether it is there now; why not is an answer, because a label is seldom worth a failure."""
    try:
        with the_forge(given) as forge:
            forge.label(int(given["issue_number"]), given["label"])
    except CaloronError as error:
        return {"ok": False, "error": str(error)}
    return {"ok": True, "error": None}


if __name__ == "__main__":
    alone(execute)
