"""Themes, improvements, learnings and the mood of a sprint, by rules."""

from __future__ import annotations

from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.shapes import kpis_of, plain, state_with_feedback
from caloron.stages.retro import analyze_sprint_feedback


def execute(given: Json) -> Json:
    found = analyze_sprint_feedback(state_with_feedback(given), kpis_of(given.get("kpis")))
    return {
        "themes": list(found.themes),
        "improvements": [finding.description for finding in found.improvements],
        "learnings": list(found.learnings),
        "sentiment": found.sentiment,
        "findings": plain(found.improvements),
        "written_by": "rules",
    }


if __name__ == "__main__":
    alone(execute)
