"""Comments on an issue or a pull request, unless the same call has said it there before."""

from __future__ import annotations

from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.at_forge import the_forge
from caloron.stages.catalogue.by_graph import key_of, text_under


def execute(given: Json) -> Json:
    number, key = int(given["issue_number"]), key_of("comment", given, "body")
    if not given["body"].strip():
        raise ValueError(f"the comment on #{number} is empty")
    with the_forge(given) as forge:
        found = forge.find_comment(number, key)
        if found is None:
            found = forge.comment(number, text_under(key, given["body"]))
        return {"comment_id": found.id, "url": forge.url(number)}


if __name__ == "__main__":
    alone(execute)
