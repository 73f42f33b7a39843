"""The retro of a sprint as text: the report for people, and the material for a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from caloron.domain.model.feedback import Feedback
from caloron.domain.model.retro_answer import Insight
from caloron.domain.model.sprint import State
from caloron.domain.model.task import Task
from caloron.domain.reporting.kpis import (
    AgentKpis,
    Kpis,
    RoleKpis,
    Run,
    Trend,
    agent_kpis,
    compute_kpis,
    label,
    role_kpis,
    trends,
    worded,
)
from caloron.domain.reporting.learnings import FATE, Improvement, SprintRecord, same_meaning
from caloron.domain.reporting.retro_rules import (
    RULES_SAY,
    Analysis,
    Finding,
    analyze,
    said_by_model,
)
from caloron.domain.reporting.waiting import verification_of
from caloron.durations import span
from caloron.slicing import to_slice

#: More known improvements would only hide those that matter.
_MAX_KNOWN = 30
#: The longest text of one part: a sprint of hundreds of tasks must still fit into a prompt.
_MAX_TEXT = 40_000


class FeedbackItem(msgspec.Struct, frozen=True, kw_only=True):
    """The feedback of an agent about its task."""

    issue_number: int | None = None
    author: str = ""
    is_parsed_yaml: bool = True
    parsed: Feedback


class Retro(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the retro of one sprint."""

    state: State
    kpis: Kpis
    agents: tuple[AgentKpis, ...] = ()
    roles: tuple[RoleKpis, ...] = ()
    feedback: tuple[FeedbackItem, ...]
    analysis: Analysis
    trends: tuple[Trend, ...] = ()
    improvements: tuple[Improvement, ...] = ()
    #: Who wrote the analysis, if the rules did not.
    analysed_by: str = ""


def review_sprint(
    state: State,
    runs: Sequence[Run],
    records: Sequence[SprintRecord],
    known: tuple[Improvement, ...],
    now: float,
) -> Retro:
    """Compare one sprint with those before it."""
    kpis, agents = compute_kpis(state, runs, now), agent_kpis(state, runs)
    ids = [record.id for record in records]
    position = ids.index(state.sprint.id) if state.sprint.id in ids else len(ids)
    # The ledger also has feedback whose comment the forge lost.
    feedback = (
        FeedbackItem(issue_number=task.links.issue, author=task.agent, parsed=task.log.feedback)
        for task in state.tasks.values()
        if task.log.feedback
    )
    return Retro(
        state=state,
        kpis=kpis,
        agents=agents,
        roles=role_kpis(agents),
        feedback=tuple(feedback),
        analysis=analyze(state, kpis),
        trends=trends(kpis, [record.kpis for record in records[:position]]),
        improvements=known,
    )


def retro_material(retro: Retro) -> dict[str, str]:
    """Return the input of a model that writes the retro, by heading: the facts of the page."""
    live = [i for i in retro.improvements if i.status != "retired" and i.source != RULES_SAY]
    material = {
        "The goal": retro.state.sprint.goal,
        "The numbers": _dashboard(retro.kpis),
        "The numbers beside those of earlier sprints": _trends(retro.trends),
        "The tasks": _bullets(_task(task) for task in retro.state.tasks.values()),
        "What the agents said": "\n\n".join(_feedback(item) for item in retro.feedback),
        "What the rules found": _bullets(_finding(f) for f in retro.analysis.improvements),
        "Improvements that are known already": _bullets(_line(i.text) for i in live[:_MAX_KNOWN]),
    }
    return {
        heading: text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}\n[… and more]"
        for heading, text in material.items()
    }


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
    """Return the page as Markdown; every ended sprint has one."""
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
    """Return the answer of a model, apart from everything that was counted."""
    if insight is None:
        return ""
    parts = [
        f"In the words of {_line(insight.by)}; mood: {insight.sentiment}.",
        _bullets(map(_line, insight.themes)),
        "Improvements:" if insight.improvements else "",
        _bullets(_finding(finding) for finding in said_by_model(insight)),
        "To keep:" if insight.learnings else "",
        _bullets(map(_line, insight.learnings)),
    ]
    return _section("What the model says", "\n\n".join(part for part in parts if part))


def _written_by(retro: Retro) -> str:
    sprint = retro.state.sprint
    answer, problem = sprint.retro.answer, sprint.retro.problem
    if author := retro.analysed_by or (answer.by if answer else ""):
        return f"Written by rules; the analysis by {_line(author)}."
    if problem:
        return f"Written by rules; the analysis by a model is missing: {_line(problem)}."
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
    problems = [f"{t.id}: {t.status}: {_line(t.reason)}" for t in tasks if t.status != "Done"]
    problems += [
        f"{t.id}: merged although red, as main was"
        for t in tasks
        if t.status == "Done" and verification_of(t) == "red, allowed"
    ]
    return problems + [
        f"{t.id} took {t.log.cycle} rounds of work; consider splitting such tasks"
        for t in tasks
        if to_slice(t.log.cycle)
    ]


def _finding(finding: Finding) -> str:
    when = f" — when: {_line(finding.applies_when)}" if finding.applies_when else ""
    return f"[{finding.priority}] {_line(finding.description)}{when} — {_line(finding.evidence)}"


def _fates(retro: Retro) -> list[str]:
    findings = (*retro.analysis.improvements, *said_by_model(retro.state.sprint.retro.answer))
    current = {same_meaning(finding.description) for finding in findings}
    return [
        f"{i.id} {FATE[i.status]}: {_line(i.text)} (seen in {len(i.seen_in)} sprints, in the"
        f" prompts of {len(i.applied_in)} planners, not seen for {i.good_since} sprints)"
        for i in retro.improvements
        if i.key not in current
    ]


def _feedback(item: FeedbackItem) -> str:
    feedback = item.parsed
    issue = f" (issue #{item.issue_number})" if item.issue_number else ""
    lines = [
        f"clarity {feedback.task_clarity or '?'}/10, {feedback.self_assessment}",
        # Its minutes are rounded up for each run: the table of agents has the measured time.
        f"{feedback.tokens_consumed} tokens",
        *(f"blocker: {_line(blocker)}" for blocker in feedback.blockers),
        *(f"note: {_line(note)}" for note in feedback.notes.splitlines() if note.strip()),
    ]
    return f"### {item.author}{issue}\n\n{_bullets(lines)}"


def _trends(compared: Sequence[Trend]) -> str:
    rows = [
        (label(t.metric), worded(t.metric, t.now), f"{worded(t.metric, t.before)} (n = {t.n})",
         t.direction)
        for t in compared
    ]  # fmt: skip
    return _table(("number", "now", "mean before", ""), rows)


def _agents(agents: Sequence[AgentKpis]) -> str:
    rows = [
        (a.agent, a.role, a.runs, a.failed_runs, span(a.time_s), f"{a.cost_usd:.2f}", a.tokens,
         a.review_cycles, a.interventions)
        for a in agents
    ]  # fmt: skip
    head = ("agent", "role", "runs", "failed", "time", "$", "tokens", "reviews", "supervisor steps")
    return _table(head, rows)


_ROLES = (
    "role", "agents", "tasks done", "tasks failed", "clarity", "tokens", "mean time", "reviews",
    "mean cost", "supervisor steps",
)  # fmt: skip


def _roles(roles: Sequence[RoleKpis]) -> str:
    """Return the means of each role."""

    def cells(role: RoleKpis) -> tuple[str | float | None, ...]:
        minutes, usd = role.avg_time_min, role.avg_cost_usd
        return (
            role.role, role.agents, role.tasks_completed, role.tasks_failed, role.avg_clarity,
            role.avg_tokens, None if minutes is None else span(60 * minutes),
            role.avg_review_cycles, None if usd is None else f"${usd:.2f}", role.interventions,
        )  # fmt: skip

    return _table(_ROLES, [cells(role) for role in roles])


def _table(head: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> str:
    if not rows:
        return ""
    return "\n".join((_row(*head), f"{'|---' * len(head)}|", *(_row(*row) for row in rows)))


def _dashboard(kpis: Kpis) -> str:
    """Return the numbers that say something about this sprint, each with its unit."""
    minutes, per_task = kpis.avg_time_per_task, kpis.avg_cost_per_task
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
        "Reviews per reviewed task": _figure(kpis.avg_review_cycles),
        "Fix rounds": str(kpis.fix_rounds),
        "Conflicts with main": str(kpis.conflict_count),
        "Steps of the supervisor": str(kpis.total_interventions),
        "Acts of people": str(kpis.human_acts),
        "Tasks without either": f"{kpis.clean_task_pct:.0f} %",
        "Tasks with feedback": f"{kpis.feedback_count} of {kpis.total_tasks}",
        "Clarity": "-" if kpis.avg_clarity is None else f"{kpis.avg_clarity}/10",
        "Cost": f"${kpis.cost_usd:.2f}",
        "Cost that is a guess": f"${kpis.estimated_cost_usd:.2f}",
        "Cost per done task": "-" if per_task is None else f"${per_task:.2f}",
        "Tokens": str(kpis.total_tokens),
        "Tokens per done task": _figure(kpis.avg_tokens_per_task),
    }
    idle = ("0", "$0.00", "0 of 0")
    shown = [(n, text) for n, text in rows.items() if text not in idle or n in _ALWAYS]
    return "| | |\n|---|---|\n" + "\n".join(_row(*row) for row in shown)


#: Shown also when they are zero: that is good news, or what people look for first.
_ALWAYS = ("Tasks done", "Tasks escalated", "Steps of the supervisor", "Acts of people", "Cost")


def _row(*cells: str | float | None) -> str:
    return "|".join(("", *(f" {c if isinstance(c, str) else _figure(c)} " for c in cells), ""))


def _figure(value: float | None) -> str:
    """Return a number as people read it, or a dash for None."""
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
    """Return a text on one line that cannot become a heading, a table or HTML."""
    printable = "".join(c if c.isspace() or c.isprintable() else "�" for c in text)
    line = " ".join(printable.split())[:500]
    marked = re.sub(r"([\\`*\[\]|]|^[#>])", r"\\\1", line)
    return marked.replace("<", "&lt;")
