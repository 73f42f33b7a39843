"""What a sprint teaches: by a model where one is configured, else by rules."""

from __future__ import annotations

from caloron.domain.analysis import said_by_model
from caloron.domain.insight import (
    CATEGORIES,
    MOST_IMPROVEMENTS,
    MOST_LINES,
    PRIORITIES,
    SENTIMENTS,
    InsightProblem,
    parse_insight,
)
from caloron.domain.sprint import State
from caloron.graph.jsontext import Json, compact
from caloron.graph.protocols import Call
from caloron.ports import Model
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.shapes import kpis_of, plain, state_with_feedback
from caloron.stages.catalogue.with_model import Unusable, written
from caloron.stages.retro import analyze_sprint_feedback


def execute(given: Json, call: Call | None = None) -> Json:
    state, kpis = state_with_feedback(given), given.get("kpis")
    return written(
        "analyze_sprint_feedback",
        {
            "The goal": state.sprint.goal,
            "The numbers": kpis or "",
            "The tasks": _tasks(state),
            "What the agents said": given.get("feedback_items") or "Nothing.",
        },
        _by_model,
        lambda: _by_rules(state, kpis),
        call=call,
        categories="|".join(CATEGORIES),
        priorities="|".join(PRIORITIES),
        sentiments="|".join(SENTIMENTS),
        most_improvements=MOST_IMPROVEMENTS,
        most_lines=MOST_LINES,
    )


def _tasks(state: State) -> str:
    lines = (f"- {t.id} ({t.plan.title}): {t.status} {t.reason}" for t in state.tasks.values())
    return "\n".join(map(str.rstrip, lines))


def _by_model(answer: dict[str, Json], model: Model) -> dict[str, Json]:
    try:
        found = parse_insight(compact(answer), model.name)
    except InsightProblem as problem:
        raise Unusable(str(problem)) from problem
    return {
        "themes": list(found.themes),
        "improvements": [advice.description for advice in found.improvements],
        "learnings": list(found.learnings),
        "sentiment": found.sentiment,
        "findings": list(plain(said_by_model(found))),
    }


def _by_rules(state: State, kpis: Json) -> dict[str, Json]:
    found = analyze_sprint_feedback(state, kpis_of(kpis))
    return {
        "themes": list(found.themes),
        "improvements": [finding.description for finding in found.improvements],
        "learnings": list(found.learnings),
        "sentiment": found.sentiment,
        "findings": plain(found.improvements),
    }


if __name__ == "__main__":
    alone(execute)
