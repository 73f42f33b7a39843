"""The retro of a sprint as a page of Markdown."""

from __future__ import annotations

from msgspec.structs import replace

from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.shapes import feedback_of, kpis_of, moment, state_with_feedback
from caloron.stages.retro import FeedbackItem, Retro, analyze_sprint_feedback
from caloron.stages.retro_page import write_retro_report


def execute(given: Json) -> Json:
    state, kpis = state_with_feedback(given), kpis_of(given.get("kpis"))
    sprint = state.sprint
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
        analysis=analyze_sprint_feedback(state, kpis),
        trends=(),
        improvements=(),
    )
    return {"report_markdown": write_retro_report(retro)}


if __name__ == "__main__":
    alone(execute)
