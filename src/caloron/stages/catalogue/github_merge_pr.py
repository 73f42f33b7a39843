"""Merges a pull request at the head that it has now, by the forge's own rules."""

from __future__ import annotations

from caloron.errors import CaloronError
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.at_forge import the_forge


def execute(given: Json) -> Json:
    """One that is merged already is merged: the commit says which one it was.

    With `head` nothing else is merged than that commit, whoever pushed since it was looked at.
    """
    number, head = int(given["pr_number"]), given.get("head") or ""
    try:
        with the_forge(given) as forge:
            merged = forge.merge(number, head or forge.pull(number).head, "", "")
    except CaloronError as error:
        return {"merged": False, "merge_commit": "", "error": str(error)}
    return {"merged": True, "merge_commit": merged.pull.merge_commit, "error": None}


if __name__ == "__main__":
    alone(execute)
