"""Where a pull request stands, and what its reviewers say of its present head."""

from __future__ import annotations

from collections.abc import Iterable

from caloron.domain.observations import ReviewSeen
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.at_forge import the_forge


def execute(given: Json) -> Json:
    number = int(given["pr_number"])
    with the_forge(given) as forge:
        pull, reviews = forge.pull(number), forge.reviews(number)
    said = _last_words([review for review in reviews if review.head == pull.head])
    return {
        "state": pull.state,
        "merged": pull.state == "merged",
        "review_state": _together(said.values()),
        "reviewers": sorted(said),
        "verdicts": dict(sorted(said.items())),
    }


def _last_words(reviews: list[ReviewSeen]) -> dict[str, str]:
    """The last verdict of everybody who has a say; a remark takes no verdict back."""
    said: dict[str, str] = {}
    for review in sorted(reviews, key=lambda one: (one.version, one.id)):
        if review.trusted and (review.verdict != "commented" or review.author not in said):
            said[review.author] = review.verdict
    return said


def _together(verdicts: Iterable[str]) -> str:
    found = set(verdicts)
    for verdict in ("changes_requested", "approved"):
        if verdict in found:
            return verdict
    return "pending"


if __name__ == "__main__":
    alone(execute)
