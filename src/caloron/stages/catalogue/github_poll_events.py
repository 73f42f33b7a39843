"""What changed on the forge since a cursor or a time; in a tick, what waits in the inbox."""

from __future__ import annotations

from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.at_forge import the_forge
from caloron.stages.catalogue.shapes import held


def execute(given: Json) -> Json:
    """Snapshots of objects, each with its version: one that is lost or doubled changes nothing."""
    if given.get("facts") is not None:
        return {"events": given["facts"], "polled_at": given.get("since") or ""}
    with the_forge(given) as forge:
        found = forge.poll(given.get("since") or "")
    return {"events": held(found.snapshots), "polled_at": found.cursor}


if __name__ == "__main__":
    alone(execute)
