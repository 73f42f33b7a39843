"""The retro of a sprint as text: the report for people, and the material for a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from caloron.domain.model.feedback import Feedback
from caloron.domain.model.retro_answer import Insight
from caloron.domain.model.sprint import State
from caloron.domain.model.task import Task
from caloron.domain.reporting.kpis import (
    AgentKpis,
    Kpis,
    RoleKpis,
    Trend,
    agent_kpis,
    compute_kpis,
    label,
    role_kpis,
    trends,
    verification_of,
    worded,
)
from caloron.domain.reporting.learnings import (
    FATE,
    Improvement,
    SprintRecord,
    as_of,
    improvements,
    same_meaning,
)
from caloron.domain.reporting.retro_rules import (
    RULES_SAY,
    Analysis,
    Finding,
    analyze,
    said_by_model,
)
from caloron.durations import span
from caloron.ledger.exports import Export
from caloron.ledger.ledger import Ledger
from caloron.ledger.run_history import (
    REMEMBERED,
    Figures,
    ended_records,
    figures_of,
    read_kept,
    sprint_numbers,
)
from caloron.slicing import cut_smaller


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
        FeedbackItem(issue_number=task.links.issue, author=task.agent, parsed=task.log.feedback)
        for task in state.tasks.values()
        if task.log.feedback
    )


def look_back(
    figures: Figures, records: Sequence[SprintRecord], found: tuple[Improvement, ...], now: float
) -> Retro:
    """The retro of one sprint beside those that came before it."""
    state, runs = figures.state, figures.runs
    kpis, agents = compute_kpis(state, runs, now), agent_kpis(state, runs)
    ids = [record.id for record in records]
    place = ids.index(state.sprint.id) if state.sprint.id in ids else len(ids)
    return Retro(
        state=state,
        kpis=kpis,
        agents=agents,
        roles=role_kpis(agents),
        feedback=collect_sprint_feedback(state),
        analysis=analyze(state, kpis),
        trends=trends(kpis, [record.kpis for record in records[:place]]),
        improvements=found,
    )


#: More of them would only hide those that matter.
_MOST_KNOWN = 30
#: Of each part; a sprint of hundreds of tasks must still fit into a prompt.
_MOST_TEXT = 40_000


def page_files(ledger: Ledger, workspace: Path, sprint: str) -> tuple[Export, Export]:
    """Return the page of an ended sprint, and the page of the sprint that ended last."""
    name = f"retro/sprint-{sprint}.md"
    text = partial(page_text, ledger, sprint)
    return (
        Export(name, workspace / name, text),
        Export("retro_report.md", workspace / "retro_report.md", text),
    )


def page_text(ledger: Ledger, sprint: str) -> bytes:
    """Return the page of an ended sprint, without anything that later sprints taught."""
    with ledger.db.snapshot() as connection:
        figures = figures_of(connection, sprint)
        # As many sprints before this one as there were when it ended.
        later = max(sprint_numbers(connection).values()) - figures.state.sprint.number
        records, kept = ended_records(connection, REMEMBERED + later), read_kept(connection)
    known, kept = as_of(sprint, records, kept)
    ended_at = figures.state.sprint.ended_at or 0.0
    page = write_retro_report(look_back(figures, known, improvements(known, kept), ended_at))
    return page.encode("utf-8", "replace")


def retro_material(ledger: Ledger, sprint: str) -> dict[str, str]:
    """What a model is given to look back with, by heading: the same facts that the page has."""
    with ledger.db.snapshot() as connection:
        figures = figures_of(connection, sprint)
        records, kept = ended_records(connection), read_kept(connection)
    state = figures.state
    earlier = [record for record in records if record.id != sprint]
    known = improvements(earlier, kept)
    retro = look_back(figures, earlier, known, state.sprint.ended_at or 0.0)
    live = [i.text for i in known if i.status != "retired" and i.source != RULES_SAY]
    told = {
        "The goal": state.sprint.goal,
        "The numbers": _dashboard(retro.kpis),
        "The numbers beside those of earlier sprints": _trends(retro.trends),
        "The tasks": _bullets(_task(task) for task in state.tasks.values()),
        "What the agents said": "\n\n".join(_feedback(item) for item in retro.feedback),
        "What the rules found": _bullets(_finding(f) for f in retro.analysis.improvements),
        "Improvements that are known already": _bullets(map(_line, live[:_MOST_KNOWN])),
    }
    return {heading: _capped(text) for heading, text in told.items()}


def _capped(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}\n[… and more]"


def _task(task: Task) -> str:
    parts = [
        f"{task.id} ({_line(task.plan.title)}): {task.status}",
        f"{len(task.review.reviewed)} reviews",
        f"{len(task.review.rejected)} times rejected",
        f"{task.supervision.total} steps of the supervisor",
        f"{len(task.conversation.acts)} acts of people",
        f"${task.usage.spent.usd:.2f}",
    ]
    if result := verification_of(task):
        parts.append(f"verification {result}")
    return ", ".join(parts) + (f"; {_line(task.reason)}" if task.reason else "")


def write_retro_report(retro: Retro) -> str:
    """The page as Markdown; it exists for every sprint, whatever became of it."""
    sprint = retro.state.sprint
    parts = [
        f"# Retro of sprint {sprint.id}\n\n{_quoted(sprint.goal)}\n\n{_summary(retro)}",
        _section("What went wrong", _bullets(_problems(retro))),
        _section("Themes", _bullets(map(_line, retro.analysis.themes))),
        _section("What worked", _bullets(map(_line, retro.analysis.learnings))),
        _section("Improvements", _bullets(_finding(f) for f in retro.analysis.improvements)),
        _model_section(sprint.retro.answer),
        _section("What became of earlier improvements", _bullets(_fates(retro))),
        _section("Agent feedback", "\n\n".join(_feedback(item) for item in retro.feedback)),
        _section("Trends", _trends(retro.trends)),
        _section("Agents", _agents(retro.agents)),
        _section("Agents by role", _roles(retro.roles)),
        _section("KPI dashboard", _dashboard(retro.kpis)),
    ]
    return "\n".join(part for part in parts if part) + f"\n{_written_by(retro)}\n"


def _model_section(insight: Insight | None) -> str:
    """What the model says stands by itself: nobody should take it for something counted."""
    if insight is None:
        return ""
    parts = [
        f"In the words of {_line(insight.by)}; mood: {insight.sentiment}.",
        _bullets(map(_line, insight.themes)),
        "Improvements:" if insight.improvements else "",
        _bullets(_finding(found) for found in said_by_model(insight)),
        "To keep:" if insight.learnings else "",
        _bullets(map(_line, insight.learnings)),
    ]
    return _section("What the model says", "\n\n".join(part for part in parts if part))


def _written_by(retro: Retro) -> str:
    sprint = retro.state.sprint
    if retro.analysed_by:
        return f"Written by rules; the analysis by {_line(retro.analysed_by)}."
    if sprint.retro.answer:
        return f"Written by rules; the analysis by {_line(sprint.retro.answer.by)}."
    if sprint.retro.problem:
        why = _line(sprint.retro.problem)
        return f"Written by rules; the analysis by a model is missing: {why}."
    if sprint.settings.retro_by == "model" and not retro.state.tasks:
        return "Written by rules; no model was asked, since there were no tasks to look at."
    return "Written by rules; no model was asked."


def _summary(retro: Retro) -> str:
    kpis, sprint = retro.kpis, retro.state.sprint
    lines = [f"{kpis.completed_tasks} of {kpis.total_tasks} tasks done"]
    if sprint.planning.failure:
        lines.append(f"**stopped**: {_line(sprint.planning.failure)}")
    lines += [
        f"{span(kpis.sprint_time_s)} in total, working time {span(kpis.work_time_s)}",
        f"${kpis.cost_usd:.2f}, {kpis.total_tokens} tokens",
        f"{kpis.escalated_count} tasks wait for a person or are held by one that does",
        f"{kpis.total_interventions} steps of the supervisor, {kpis.human_acts} acts of people",
        f"{kpis.failed_runs} failed runs of agents",
        f"{kpis.tests_passing} tasks verified green",
        f"{kpis.verify_failures} of {kpis.verify_runs} verifications red",
        f"feedback from {kpis.feedback_count} of {kpis.total_tasks} tasks",
        f"mood: {retro.analysis.sentiment}",
    ]
    return _bullets(lines)


def _problems(retro: Retro) -> list[str]:
    tasks = retro.state.tasks.values()
    told = [f"{t.id}: {t.status}: {_line(t.reason)}" for t in tasks if t.status != "Done"]
    red = [t.id for t in tasks if t.status == "Done" and verification_of(t) == "red, allowed"]
    told += [f"{name}: merged although red, as main was" for name in red]
    return told + [
        f"{t.id} took {t.log.cycle} cycles: {flag}"
        for t in tasks
        if (flag := cut_smaller(t.log.cycle))
    ]


def _finding(finding: Finding) -> str:
    when = f" — when: {_line(finding.applies_when)}" if finding.applies_when else ""
    return f"[{finding.priority}] {_line(finding.description)}{when} — {_line(finding.evidence)}"


def _fates(retro: Retro) -> list[str]:
    found = (*retro.analysis.improvements, *said_by_model(retro.state.sprint.retro.answer))
    now = {same_meaning(finding.description) for finding in found}
    return [
        f"{i.id} {FATE[i.status]}: {_line(i.text)} (seen in {len(i.seen_in)} sprints, in the"
        f" prompts of {len(i.applied_in)} planners, not seen for {i.good_since} sprints)"
        for i in retro.improvements
        if i.key not in now
    ]


def _feedback(item: FeedbackItem) -> str:
    said = item.parsed
    issue = f" (issue #{item.issue_number})" if item.issue_number else ""
    lines = [
        f"clarity {said.task_clarity or '?'}/10, {said.self_assessment}",
        # Its minutes are rounded up for each run: the table of agents has the measured time.
        f"{said.tokens_consumed} tokens",
        *(f"blocker: {_line(blocker)}" for blocker in said.blockers),
        *(f"note: {_line(note)}" for note in said.notes.splitlines() if note.strip()),
    ]
    return f"### {item.author}{issue}\n\n{_bullets(lines)}"


def _trends(found: Sequence[Trend]) -> str:
    rows = [
        _row(label(t.metric), worded(t.metric, t.now), f"{worded(t.metric, t.before)} (n = {t.n})",
             t.direction)
        for t in found
    ]  # fmt: skip
    head = "| number | now | mean before | |\n|---|---|---|---|\n"
    return head + "\n".join(rows) if rows else ""


def _agents(found: Sequence[AgentKpis]) -> str:
    rows = [
        _row(a.agent, a.role, a.runs, a.failed_runs, span(a.time_s), f"{a.cost_usd:.2f}", a.tokens,
             a.review_cycles, a.interventions)
        for a in found
    ]  # fmt: skip
    head = (
        "| agent | role | runs | failed | time | $ | tokens | reviews | supervisor steps |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(rows) if rows else ""


def _roles(found: Sequence[RoleKpis]) -> str:
    names = [name.replace("_", " ") for name in RoleKpis.__struct_fields__]
    rows = [_row(*(getattr(role, name) for name in RoleKpis.__struct_fields__)) for role in found]
    head = f"{_row(*names)}\n{'|---' * len(names)}|\n"
    return head + "\n".join(rows) if rows else ""


def _dashboard(kpis: Kpis) -> str:
    """The numbers that say something about this sprint, each with its unit."""
    minutes = kpis.avg_time_per_task
    rows: dict[str, str] = {
        "Tasks done": f"{kpis.completed_tasks} of {kpis.total_tasks}",
        "Tasks escalated": str(kpis.failure_count),
        "Tasks blocked": str(kpis.blocked_count),
        "Tasks cancelled": str(kpis.cancelled_count),
        "Tasks verified green": f"{kpis.tests_passing} of {kpis.completed_tasks}",
        "Tasks merged although red": str(kpis.red_merges),
        "Verifications red": f"{kpis.verify_failures} of {kpis.verify_runs}",
        "Time in total": span(kpis.sprint_time_s),
        "Working time": span(kpis.work_time_s),
        "Time of agents per done task": "-" if minutes is None else span(60 * minutes),
        "Runs of agents that failed": str(kpis.failed_runs),
        "Runs of agents that were interrupted": str(kpis.interrupted_runs),
        "Reviews per reviewed task": figure(kpis.avg_review_cycles),
        "Fix rounds": str(kpis.fix_rounds),
        "Conflicts with main": str(kpis.conflict_count),
        "Steps of the supervisor": str(kpis.total_interventions),
        "Acts of people": str(kpis.human_acts),
        "Tasks without either": f"{kpis.clean_task_pct:.0f} %",
        "Tasks with feedback": f"{kpis.feedback_count} of {kpis.total_tasks}",
        "Clarity": "-" if kpis.avg_clarity is None else f"{kpis.avg_clarity}/10",
        "Cost": f"${kpis.cost_usd:.2f}",
        "Cost that is a guess": f"${kpis.estimated_cost_usd:.2f}",
        "Cost per done task": _dollars(kpis.avg_cost_per_task),
        "Tokens": str(kpis.total_tokens),
        "Tokens per done task": figure(kpis.avg_tokens_per_task),
    }
    idle = ("0", "$0.00", "0 of 0")
    told = {name: text for name, text in rows.items() if text not in idle or name in _ALWAYS}
    lines = (f"| {name} | {text} |" for name, text in told.items())
    return "| | |\n|---|---|\n" + "\n".join(lines)


#: Zero is good news here, or the first thing that people look for.
_ALWAYS = ("Tasks done", "Tasks escalated", "Steps of the supervisor", "Acts of people", "Cost")


def _dollars(usd: float | None) -> str:
    return "-" if usd is None else f"${usd:.2f}"


def _row(*cells: str | float | None) -> str:
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
    seen = "".join(c if c.isspace() or c.isprintable() else "�" for c in text)
    line = " ".join(seen.split())[:500]
    marked = re.sub(r"([\\`*\[\]|]|^[#>])", r"\\\1", line)
    return marked.replace("<", "&lt;")
