"""What a model says about a sprint: the words it may use, and the one form it may answer in.

Nothing in it is a number that anybody counts with: figures come from the ledger alone.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

Category = Literal[
    "AgentDefinition", "TaskTemplate", "DagStructure", "SystemPrompt", "Tooling", "ReviewProcess"
]
CATEGORIES: tuple[Category, ...] = get_args(Category)
Priority = Literal["critical", "high", "medium", "low"]
PRIORITIES: tuple[Priority, ...] = ("critical", "high", "medium", "low")
Sentiment = Literal["positive", "mixed", "negative", "neutral"]
SENTIMENTS: tuple[Sentiment, ...] = get_args(Sentiment)

#: A page that nobody reads to its end teaches nothing.
MOST_IMPROVEMENTS = 5
MOST_LINES = 8
_LONGEST = 400

Said = Annotated[str, Meta(min_length=1, max_length=_LONGEST)]
Lines = Annotated[tuple[Said, ...], Meta(max_length=MOST_LINES)]


class Advice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing to do better, in a model's words."""

    category: Category
    priority: Priority
    description: Said
    #: What in the numbers or the feedback shows it.
    evidence: Said
    #: In which situation a planner should think of it.
    applies_when: Said


class _Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    themes: Lines
    improvements: Annotated[tuple[Advice, ...], Meta(max_length=MOST_IMPROVEMENTS)]
    learnings: Lines
    sentiment: Sentiment


class Insight(msgspec.Struct, frozen=True, kw_only=True):
    """The analysis of a sprint by a model, and which one wrote it."""

    by: str
    themes: tuple[str, ...] = ()
    improvements: tuple[Advice, ...] = ()
    learnings: tuple[str, ...] = ()
    sentiment: Sentiment = "neutral"


class InsightProblem(Exception):
    """An answer that is not in the asked form: what is wrong with it."""


_decode = msgspec.json.Decoder(_Answer).decode


def parse_insight(answer: str, by: str) -> Insight:
    """The one JSON object of an answer, or an `InsightProblem`; nothing is guessed or mended."""
    start, end = answer.find("{"), answer.rfind("}")
    if start < 0 or end < start:
        raise InsightProblem("the answer holds no JSON object")
    try:
        found = _decode(answer[start : end + 1].encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise InsightProblem(f"the answer is not in the asked form: {error}") from error
    said = (
        *found.themes,
        *found.learnings,
        *(t for a in found.improvements for t in (a.description, a.evidence, a.applies_when)),
    )
    if not all(_line(text) for text in said):
        raise InsightProblem("the answer is not in the asked form: a text in it is blank")
    return Insight(
        by=by,
        themes=tuple(map(_line, found.themes)),
        improvements=tuple(map(_on_lines, found.improvements)),
        learnings=tuple(map(_line, found.learnings)),
        sentiment=found.sentiment,
    )


def _on_lines(advice: Advice) -> Advice:
    return msgspec.structs.replace(
        advice,
        description=_line(advice.description),
        evidence=_line(advice.evidence),
        applies_when=_line(advice.applies_when),
    )


def _line(text: str) -> str:
    """A text as one line without characters that cannot be shown."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
