"""The retro of a sprint as a page of Markdown."""

from __future__ import annotations

from msgspec.structs import replace

from caloron.domain.analysis import Analysis
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.shapes import feedback_of, kpis_of, moment, read, state_with_feedback
from caloron.stages.retro import FeedbackItem, Retro, analyze_sprint_feedback
from caloron.stages.retro_page import write_retro_report


def execute(given: Json) -> Json:
    state, kpis = state_with_feedback(given), kpis_of(given.get("kpis"))
    sprint = state.sprint
    if not sprint.id:
        raise ValueError("sprint_id: whose retro it is must be said")
    state = replace(
        state,
        sprint=replace(
            sprint,
            created_at=moment(given.get("started_at")) or sprint.created_at,
            ended_at=moment(given.get("ended_at")) or sprint.ended_at,
        ),
    )
    items = [
        FeedbackItem(issue_number=item.issue_number, author=item.author, parsed=item.parsed)
        for item in feedback_of(given.get("feedback_items"))
        if item.parsed is not None
    ]
    retro = Retro(
        state=state,
        kpis=kpis,
        agents=(),
        roles=(),
        feedback=tuple(items),
        analysis=_analysis(given.get("analysis")) or analyze_sprint_feedback(state, kpis),
        trends=(),
        improvements=(),
        analysed_by=_model_of(given.get("analysis")),
    )
    return {"report_markdown": write_retro_report(retro)}


def _analysis(told: Json) -> Analysis | None:
    """What `analyze_sprint_feedback` found, if it was asked."""
    if told is None:
        return None
    found = {name: told[name] for name in ("themes", "learnings", "sentiment") if name in told}
    analysis: Analysis = read(
        found | {"improvements": told.get("findings", [])}, Analysis, "analysis"
    )
    return analysis


def _model_of(told: Json) -> str:
    if not isinstance(told, dict) or told.get("written_by") != "model":
        return ""
    usage = told.get("usage") or {}
    return str(usage.get("model") or usage.get("provider") or "a model")


if __name__ == "__main__":
    alone(execute)
