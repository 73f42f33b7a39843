"""Stages of the retro: collect what agents said, count, and analyse by rules."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from caloron.domain.analysis import Analysis, analyze
from caloron.domain.feedback import Feedback
from caloron.domain.learnings import Improvement, SprintRecord
from caloron.domain.retro import (
    AgentKpis,
    Kpis,
    RoleKpis,
    Run,
    agent_kpis,
    compute_kpis,
    role_kpis,
)
from caloron.domain.sprint import State
from caloron.domain.trends import Trend, trends
from caloron.ledger.figures import Figures


class FeedbackItem(msgspec.Struct, frozen=True, kw_only=True):
    issue_number: int | None
    author: str
    is_parsed_yaml: bool = True
    parsed: Feedback


class Retro(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the retro of one sprint found."""

    state: State
    kpis: Kpis
    agents: tuple[AgentKpis, ...]
    roles: tuple[RoleKpis, ...]
    feedback: tuple[FeedbackItem, ...]
    analysis: Analysis
    trends: tuple[Trend, ...]
    improvements: tuple[Improvement, ...]
    #: Who wrote the analysis, if the rules did not.
    analysed_by: str = ""


def collect_sprint_feedback(state: State) -> tuple[FeedbackItem, ...]:
    """What the agents said, from the ledger: it is there also when the forge lost the comment."""
    return tuple(
        FeedbackItem(issue_number=task.issue, author=task.agent, parsed=task.feedback)
        for task in state.tasks.values()
        if task.feedback
    )


def compute_sprint_kpis(state: State, runs: Sequence[Run], now: float) -> Kpis:
    """The numbers of the sprint."""
    return compute_kpis(state, runs, now)


def analyze_sprint_feedback(state: State, kpis: Kpis) -> Analysis:
    """Themes, improvements, learnings and the mood, by rules; no model is asked."""
    return analyze(state, kpis)


def look_back(
    figures: Figures, records: Sequence[SprintRecord], found: tuple[Improvement, ...], now: float
) -> Retro:
    """The retro of one sprint beside those that came before it."""
    state, runs = figures.state, figures.runs
    kpis, agents = compute_sprint_kpis(state, runs, now), agent_kpis(state, runs)
    ids = [record.id for record in records]
    place = ids.index(state.sprint.id) if state.sprint.id in ids else len(ids)
    return Retro(
        state=state,
        kpis=kpis,
        agents=agents,
        roles=role_kpis(agents),
        feedback=collect_sprint_feedback(state),
        analysis=analyze_sprint_feedback(state, kpis),
        trends=trends(kpis, [record.kpis for record in records[:place]]),
        improvements=found,
    )
