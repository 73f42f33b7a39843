"""What agents said about their tasks, from the comments on the issues."""

from __future__ import annotations

import re

import msgspec

from caloron.domain.feedback import Feedback
from caloron.domain.observations import CommentSeen
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.at_forge import the_forge
from caloron.stages.catalogue.shapes import plain, state_of
from caloron.store import log

_KEY = "caloron_feedback"
_BLOCK = re.compile(r"^---\s*\n(.*?)\n---\s*$", re.DOTALL | re.MULTILINE)
_MOST = 500


def execute(given: Json) -> Json:
    with the_forge(given) as forge:
        comments = [c for number in _issues(given) for c in forge.comments(number)]
    # What a stranger writes into a public issue is no feedback of an agent.
    said = [c for c in comments if f"{_KEY}:" in c.body and c.trusted]
    return {"feedback_items": [_item(comment) for comment in said]}


def _issues(given: Json) -> list[int]:
    """Those that are named, or those of the sprint's tasks."""
    numbers = given.get("issue_numbers")
    if numbers is not None:
        return [int(number) for number in numbers]
    if given.get("state") is None:
        raise ValueError("issue_numbers: neither they nor the state of a sprint is given")
    return [t.issue for t in state_of(given["state"]).tasks.values() if t.issue is not None]


def _item(comment: CommentSeen) -> Json:
    common: dict[str, Json] = {
        "issue_number": comment.issue,
        "author": comment.author,
        "created_at": comment.created_at,
    }
    said = _feedback(comment.body)
    if said is None:
        raw = comment.body[:_MOST]
        return common | {"is_parsed_yaml": False, "parsed": None, "raw_body": raw}
    return common | {"is_parsed_yaml": True, "parsed": plain(said)}


def _feedback(body: str) -> Feedback | None:
    import yaml

    for block in _BLOCK.findall(body):
        try:
            told = yaml.safe_load(block)
            if isinstance(told, dict) and _KEY in told:
                return msgspec.convert(told[_KEY], Feedback, strict=False)
        except (yaml.YAMLError, msgspec.ValidationError) as error:
            log.info("a feedback block cannot be read", error=error)
    return None


if __name__ == "__main__":
    alone(execute)
