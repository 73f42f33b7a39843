"""The answer of a model that looks back at a sprint, and its validation.

No number in it is used: figures come from the ledger alone.
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

#: People do not read a longer page to its end.
MOST_IMPROVEMENTS = 5
MOST_LINES = 8
_LONGEST = 400

Text = Annotated[str, Meta(min_length=1, max_length=_LONGEST)]
Lines = Annotated[tuple[Text, ...], Meta(max_length=MOST_LINES)]


class Advice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An improvement in a model's words."""

    category: Category
    priority: Priority
    description: Text
    #: The numbers or the feedback that show it.
    evidence: Text
    #: The situation in which a planner should think of it.
    applies_when: Text


class _Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    themes: Lines
    improvements: Annotated[tuple[Advice, ...], Meta(max_length=MOST_IMPROVEMENTS)]
    learnings: Lines
    sentiment: Sentiment


class Insight(msgspec.Struct, frozen=True, kw_only=True):
    """The analysis of a sprint by a model, and the name of the model."""

    by: str
    themes: tuple[str, ...] = ()
    improvements: tuple[Advice, ...] = ()
    learnings: tuple[str, ...] = ()
    sentiment: Sentiment = "neutral"


class InsightProblem(Exception):
    """An answer that is not in the asked form."""


_decode = msgspec.json.Decoder(_Answer).decode


def parse_insight(answer: str, by: str) -> Insight:
    """Return the JSON object of an answer, or raise an `InsightProblem`; nothing is guessed."""
    start, end = answer.find("{"), answer.rfind("}")
    if start < 0 or end < start:
        raise InsightProblem("the answer holds no JSON object")
    try:
        parsed = _decode(answer[start : end + 1].encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise InsightProblem(f"the answer is not in the asked form: {error}") from error
    texts = (
        *parsed.themes,
        *parsed.learnings,
        *(t for a in parsed.improvements for t in (a.description, a.evidence, a.applies_when)),
    )
    if not all(_line(text) for text in texts):
        raise InsightProblem("the answer is not in the asked form: a text in it is blank")
    return Insight(
        by=by,
        themes=tuple(map(_line, parsed.themes)),
        improvements=tuple(map(_on_lines, parsed.improvements)),
        learnings=tuple(map(_line, parsed.learnings)),
        sentiment=parsed.sentiment,
    )


def _on_lines(advice: Advice) -> Advice:
    return msgspec.structs.replace(
        advice,
        description=_line(advice.description),
        evidence=_line(advice.evidence),
        applies_when=_line(advice.applies_when),
    )


def _line(text: str) -> str:
    """Return a text as one line of printable characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
