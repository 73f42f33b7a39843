"""The retro as text: the page for people, and what a model is given to look back with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from caloron.domain.analysis import RULES_SAY, Finding, said_by_model
from caloron.domain.insight import Insight
from caloron.domain.learnings import improvements, same_meaning
from caloron.domain.retro import AgentKpis, Kpis, RoleKpis, verification_of
from caloron.domain.sprint import Task
from caloron.domain.trends import Trend
from caloron.ledger.figures import figures_of, read_kept
from caloron.ledger.learnings import report_file, write_learnings
from caloron.ledger.ledger import Ledger
from caloron.ledger.projected import Projected, write
from caloron.ledger.records import ended_records, keep_records
from caloron.slicing import cut_smaller
from caloron.stages.retro import FeedbackItem, Retro, look_back

#: More of them would only hide those that matter.
_MOST_KNOWN = 30
#: Of each part; a sprint of hundreds of tasks must still fit into a prompt.
_MOST_TEXT = 40_000


def hold_retro(ledger: Ledger, workspace: Path, sprint: str, now: float) -> list[str]:
    """Write the retro's page and the learnings of a sprint that has ended; lines for people."""
    keep_records(ledger)
    told, records, kept = write_learnings(ledger, workspace, busy=False)
    with ledger.db.snapshot() as connection:
        figures = figures_of(connection, sprint)
    page = write_retro_report(look_back(figures, records, improvements(records, kept), now))
    text = page.encode("utf-8", "replace")
    write(ledger, (page_file(workspace, sprint), text), (last_page_file(workspace), text))
    return told


def page_file(workspace: Path, sprint: str) -> Projected:
    """The retro's page of one sprint."""
    name = f"retro/sprint-{sprint}.md"
    return Projected(name=name, path=workspace / name)


def last_page_file(workspace: Path) -> Projected:
    """The page of the sprint that ended last."""
    return Projected(name="retro_report.md", path=report_file(workspace))


def page_text(ledger: Ledger, sprint: str) -> bytes:
    """The page as it is written when the sprint ends: of later sprints it knows nothing."""
    with ledger.db.snapshot() as connection:
        figures = figures_of(connection, sprint)
        records, kept = ended_records(connection, 0, believe=False), read_kept(connection)
    ids = [record.id for record in records]
    known = records[: ids.index(sprint) + 1] if sprint in ids else records
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
        f"{len(task.reviewed)} reviews",
        f"{len(task.rejected)} times rejected",
        f"{task.steps} interventions",
        f"${task.spent.usd:.2f}",
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
        _model_section(sprint.insight),
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
    if sprint.insight:
        return f"Written by rules; the analysis by {_line(sprint.insight.by)}."
    if sprint.insight_problem:
        why = _line(sprint.insight_problem)
        return f"Written by rules; the analysis by a model is missing: {why}."
    if sprint.retro == "model" and not retro.state.tasks:
        return "Written by rules; no model was asked, since there were no tasks to look at."
    return "Written by rules; no model was asked."


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
    told += [f"{name}: merged although red, as main was" for name in red]
    return told + [
        f"{t.id} took {t.cycle} cycles: {flag}" for t in tasks if (flag := cut_smaller(t.cycle))
    ]


def _finding(finding: Finding) -> str:
    when = f" — when: {_line(finding.applies_when)}" if finding.applies_when else ""
    return f"[{finding.priority}] {_line(finding.description)}{when} — {_line(finding.evidence)}"


def _fates(retro: Retro) -> list[str]:
    found = (*retro.analysis.improvements, *said_by_model(retro.state.sprint.insight))
    now = {same_meaning(finding.description) for finding in found}
    return [
        f"{i.id} {i.status}: {_line(i.text)} (seen {len(i.seen_in)}, told {len(i.applied_in)},"
        f" good since {i.good_since})"
        for i in retro.improvements
        if i.key not in now
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


def _roles(found: Sequence[RoleKpis]) -> str:
    names = [name.replace("_", " ") for name in RoleKpis.__struct_fields__]
    rows = [_row(*(getattr(role, name) for name in RoleKpis.__struct_fields__)) for role in found]
    head = f"{_row(*names)}\n{'|---' * len(names)}|\n"
    return head + "\n".join(rows) if rows else ""


def _dashboard(kpis: Kpis) -> str:
    rows = (
        f"| {name.replace('_', ' ').capitalize()} | {figure(getattr(kpis, name))} |"
        for name in kpis.__struct_fields__
    )
    return "| | |\n|---|---|\n" + "\n".join(rows)


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
