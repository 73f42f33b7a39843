"""Stages of the retro: collect what agents said, count, analyse by rules, and write it down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from caloron.domain.analysis import Analysis, Finding, analyze
from caloron.domain.feedback import Feedback
from caloron.domain.learnings import (
    Improvement,
    SprintRecord,
    Trend,
    improvements,
    trends,
)
from caloron.domain.retro import AgentKpis, Kpis, Run, agent_kpis, compute_kpis, verification_of
from caloron.domain.sprint import State
from caloron.ledger.figures import Figures, figures_of
from caloron.ledger.learnings import report_file, write_learnings
from caloron.ledger.ledger import Ledger
from caloron.store.files import write_atomic


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
    feedback: tuple[FeedbackItem, ...]
    analysis: Analysis
    trends: tuple[Trend, ...]
    improvements: tuple[Improvement, ...]


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
    kpis = compute_sprint_kpis(state, runs, now)
    ids = [record.id for record in records]
    place = ids.index(state.sprint.id) if state.sprint.id in ids else len(ids)
    return Retro(
        state=state,
        kpis=kpis,
        agents=agent_kpis(state, runs),
        feedback=collect_sprint_feedback(state),
        analysis=analyze_sprint_feedback(state, kpis),
        trends=trends(kpis, [record.kpis for record in records[:place]]),
        improvements=found,
    )


def hold_retro(ledger: Ledger, workspace: Path, sprint: str, now: float) -> list[str]:
    """Write the retro's page and the learnings of a sprint that has ended; lines for people."""
    told, records, kept = write_learnings(ledger, workspace, busy=False)
    with ledger.db.snapshot() as connection:
        figures = figures_of(connection, sprint)
    page = write_retro_report(look_back(figures, records, improvements(records, kept), now))
    text = page.encode("utf-8", "replace")
    write_atomic(workspace / "retro" / f"sprint-{sprint}.md", text)
    write_atomic(report_file(workspace), text)
    return told


def write_retro_report(retro: Retro) -> str:
    """The page as Markdown; it exists for every sprint, whatever became of it."""
    sprint = retro.state.sprint
    parts = [
        f"# Retro of sprint {sprint.id}\n\n{_quoted(sprint.goal)}\n\n{_summary(retro)}",
        _section("What went wrong", _bullets(_problems(retro))),
        _section("Themes", _bullets(retro.analysis.themes)),
        _section("What worked", _bullets(retro.analysis.learnings)),
        _section("Improvements", _bullets(_finding(f) for f in retro.analysis.improvements)),
        _section("What became of earlier improvements", _bullets(_fates(retro))),
        _section("Agent feedback", "\n\n".join(_feedback(item) for item in retro.feedback)),
        _section("Trends", _trends(retro.trends)),
        _section("Agents", _agents(retro.agents)),
        _section("KPI dashboard", _dashboard(retro.kpis)),
    ]
    return "\n".join(part for part in parts if part) + "\nFound by rules; no model was asked.\n"


def _summary(retro: Retro) -> str:
    kpis, sprint = retro.kpis, retro.state.sprint
    lines = [f"{kpis.completed_tasks} of {kpis.total_tasks} tasks done"]
    if sprint.stopped:
        lines.append(f"**stopped**: {_line(sprint.stopped)}")
    lines += [
        f"{kpis.sprint_time_s:.0f} s, of which agents worked {kpis.total_time_min:.1f} min",
        f"${kpis.cost_usd:.2f}, {kpis.total_tokens} tokens",
        f"{kpis.escalated_count} tasks wait for a person or are held by one that does",
        f"{kpis.total_interventions} interventions, {kpis.failed_runs} failed runs of agents",
        f"{kpis.tests_passing} merged results verified green",
        f"{kpis.verify_failures} of {kpis.verify_runs} verifications red",
        f"feedback from {kpis.feedback_count} of {kpis.total_tasks} tasks",
        f"mood: {retro.analysis.sentiment}",
    ]
    return _bullets(lines)


def _problems(retro: Retro) -> list[str]:
    tasks = retro.state.tasks.values()
    told = [f"{t.id}: {t.status}: {_line(t.reason)}" for t in tasks if t.status != "Done"]
    red = [t.id for t in tasks if t.status == "Done" and verification_of(t) == "red, allowed"]
    return told + [f"{name}: merged although red, as main was" for name in red]


def _finding(finding: Finding) -> str:
    return f"[{finding.priority}] {finding.description} — {_line(finding.evidence)}"


def _fates(retro: Retro) -> list[str]:
    now = {finding.rule for finding in retro.analysis.improvements}
    return [
        f"{i.id} {i.status}: {_line(i.text)} (seen {len(i.seen_in)}, told {len(i.applied_in)},"
        f" good since {i.good_since})"
        for i in retro.improvements
        if i.rule not in now
    ]


def _feedback(item: FeedbackItem) -> str:
    said = item.parsed
    issue = f" (issue #{item.issue_number})" if item.issue_number else ""
    lines = [
        f"clarity {said.task_clarity or '?'}/10, {said.self_assessment}",
        f"{said.tokens_consumed} tokens, {said.time_to_complete_min} min",
        *(f"blocker: {_line(blocker)}" for blocker in said.blockers),
        *([f"notes: {_line(said.notes)}"] if said.notes else []),
    ]
    return f"### {item.author}{issue}\n\n{_bullets(lines)}"


def _trends(found: Sequence[Trend]) -> str:
    rows = [_row(t.metric, t.now, f"{figure(t.before)} (n = {t.n})", t.direction) for t in found]
    head = "| number | now | mean before | |\n|---|---|---|---|\n"
    return head + "\n".join(rows) if rows else ""


def _agents(found: Sequence[AgentKpis]) -> str:
    rows = [
        _row(a.agent, a.role, a.runs, a.failed_runs, a.time_s, f"{a.cost_usd:.2f}", a.tokens,
             a.review_cycles, a.interventions)
        for a in found
    ]  # fmt: skip
    head = (
        "| agent | role | runs | failed | seconds | $ | tokens | reviews | interventions |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(rows) if rows else ""


def _dashboard(kpis: Kpis) -> str:
    rows = (
        f"| {name.replace('_', ' ').capitalize()} | {figure(getattr(kpis, name))} |"
        for name in kpis.__struct_fields__
    )
    return "| | |\n|---|---|\n" + "\n".join(rows)


def _row(*cells: str | float) -> str:
    return "|".join(("", *(f" {c if isinstance(c, str) else figure(c)} " for c in cells), ""))


def figure(value: float | None) -> str:
    """A number as people read it; without one, a dash."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.4f}".rstrip("0").rstrip(".")


def _section(heading: str, body: str) -> str:
    return f"\n## {heading}\n\n{body}\n" if body.strip() else ""


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _quoted(text: str) -> str:
    return "\n".join(f"> {_line(line)}" for line in text.splitlines()) or ">"


def _line(text: str) -> str:
    """Text of others on one line that cannot become a heading, a table or HTML."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")[:500]
