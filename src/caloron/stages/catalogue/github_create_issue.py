"""Opens an issue, unless the same call has opened it before."""

from __future__ import annotations

from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.at_forge import the_forge
from caloron.stages.catalogue.by_graph import cleaner, key_of, text_under


def execute(given: Json) -> Json:
    key = key_of("issue", given, "title", "body")
    labels = tuple(given.get("labels") or ())
    with the_forge(given) as forge:
        found = forge.find_issue(key)
        if found is None:
            body = text_under(key, given["body"])
            found = forge.create_issue(cleaner()(given["title"]), body, labels)
        return {"issue_number": found.number, "url": forge.url(found.number)}


if __name__ == "__main__":
    alone(execute)
