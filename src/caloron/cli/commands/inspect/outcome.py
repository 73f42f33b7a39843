"""`caloron show`, `metrics` and `retro`: the numbers of one sprint and of all, and its lessons."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from caloron.cli import output
from caloron.cli.app import SPRINT, Answer, command, named_sprint, sprint_argument
from caloron.cli.format import counted, dollars
from caloron.cli.project_view import as_data, read_ledger
from caloron.cli.render import Item, Page, Section, as_text, unmarked
from caloron.domain.compat.legacy_sprints import summary_of
from caloron.domain.model.sprint import State
from caloron.domain.model.task import Task
from caloron.domain.reporting.history import remembered, with_adopted
from caloron.domain.reporting.kpis import (
    Run,
    agent_runs,
    blockers_of,
    compute_kpis,
    label,
    tools_of,
    trends,
    worded,
)
from caloron.domain.reporting.learnings import FATE, SprintRecord, as_of, improvements, same_meaning
from caloron.domain.reporting.retro_page import Retro, review_sprint, write_retro_report
from caloron.durations import span
from caloron.ledger import reading, run_history, views
from caloron.ledger.learnings import kept_in_file
from caloron.ledger.legacy import LegacySprints, find_legacy_sprint, legacy_sprints
from caloron.ledger.locate import ProjectPaths, find_project
from caloron.ledger.projects import load_project


@command(project=True, examples=["caloron show 3", "caloron show shop-3 --output json"])
@click.argument("sprint", type=SPRINT, callback=named_sprint)
def show(sprint: str, project: str | None) -> Answer:
    """Show SPRINT, by its id or its number, with each of its tasks."""
    data = _imported(find_project(project), sprint)
    if data is None:
        with read_ledger(project, sprint) as (_, connection):
            data = _record(
                run_history.figures_of(connection, run_history.find_sprint(connection, sprint))
            )
    return Answer(data, lambda: as_text(_page(data)))


def _imported(paths: ProjectPaths, name: str) -> dict[str, Any] | None:
    """A sprint imported from an older version; only its summary is available."""
    with reading.ledger_if_any(paths) as connection:
        sprint = find_legacy_sprint(paths, connection, name)
    if sprint is None:
        return None
    summary = summary_of(sprint.record)
    known = as_data(remembered(sprint.id, sprint.record).kpis)
    return {
        **views.imported_view(sprint),
        # Only these numbers were recorded.
        "kpis": dict.fromkeys(known) | {name: known[name] for name in _RECORDED},
        "tools_used": dict.fromkeys(summary.tools, 1),
        "blockers": list(summary.blockers),
    }


_RECORDED = ("total_tasks", "completed_tasks", "failure_count", "avg_clarity", "sprint_time_s",
             "total_interventions")  # fmt: skip


def _record(figures: run_history.Figures) -> dict[str, Any]:
    state, runs, now = figures.state, figures.runs, time.time()
    return {
        **views.sprint_state(state, now),
        "kpis": as_data(compute_kpis(state, runs, now)),
        "tools_used": tools_of(state, runs),
        "blockers": list(blockers_of(state)),
        "tasks": [_task(state, task, runs) for task in state.tasks.values()],
    }


def _task(state: State, task: Task, runs: tuple[Run, ...]) -> dict[str, Any]:
    own_runs = tuple(run for run in runs if run.task == task.id)
    only_task = State(sprint=state.sprint, tasks={task.id: task})
    return {
        **views.task_view(task),
        "tools": sorted(tools_of(only_task, own_runs)),
        "runs": len(agent_runs(own_runs)),
    }


_HEAD = ("task", "status", "verified", "reviews", "runs", "clarity", "cost", "tools", "reason")


def _page(data: dict[str, Any]) -> Page:
    kpis = data["kpis"]
    clarity = "unknown" if kpis["avg_clarity"] is None else f"{kpis['avg_clarity']}/10"
    took, supervisor = span(data["duration_s"]), counted(kpis["total_interventions"], "step")
    if data["imported"]:
        lines = [
            f"{data['outcome']}: {took}",
            f"clarity: {clarity}",
            f"supervisor: {supervisor}",
            "imported from an older version; only this summary is available",
        ]
    else:
        lines = [
            f"{data['outcome']}: {took}, working time {span(kpis['work_time_s'])}",
            f"cost: ${data['cost_usd']:.2f}, {counted(kpis['total_tokens'], 'token')}",
            f"clarity: {clarity}; tasks verified green: {kpis['tests_passing']}",
            f"people: {counted(kpis['human_acts'], 'act')}; supervisor: {supervisor}",
        ]
    lines += [f"failure: {data['failure']}"] if data["failure"] else []
    done = f"{data['completed_tasks']} of {counted(data['total_tasks'], 'task')} done"
    return Page(
        title=f"Sprint {data['sprint_id']} (#{data['number']}): {done}",
        lead=data["goal"],
        sections=[
            Section("Summary", items=[Item(line) for line in lines]),
            Section("Tasks", rows=[_HEAD, *(_row(task) for task in data["tasks"])]),
            Section("Blockers", items=[Item(text) for text in data["blockers"][:10]]),
        ],
    )


def _row(task: dict[str, Any]) -> tuple[str, ...]:
    clarity = "-" if task["clarity"] is None else f"{task['clarity']}/10"
    tools = ", ".join(task["tools"][:4]) or "-"
    return (
        task["id"], task["status"], task["verification"] or "-", str(task["review_rounds"]),
        str(task["runs"]), clarity, dollars(task["cost_usd"]), tools, task["reason"],
    )  # fmt: skip


@command(
    project=True,
    examples=["caloron metrics", "caloron metrics --all", "caloron metrics --output json"],
)
@click.option("--all", "every", is_flag=True, help="Add every number of the last sprint.")
def metrics(every: bool, project: str | None) -> Answer:
    """Show the numbers of the ended sprints, and how the last one compares."""
    paths = find_project(project)
    records: list[SprintRecord] = []
    if paths.ledger.exists():
        with read_ledger(project) as (_, connection):
            records, kept = (
                run_history.ended_records(connection, last=0),
                run_history.read_kept(connection, -1),
            )
            earlier = legacy_sprints(paths, connection)
    else:
        earlier = legacy_sprints(paths, None)
        kept = kept_in_file(load_project(paths.name).workspace)
    if earlier.problem:
        output.note(f"warning: {earlier.problem}")
    adopted = [remembered(s.id, s.record) for s in reversed(earlier.sprints)]
    kept = with_adopted(kept, adopted)
    data = {"project": paths.name} | _totals(kept.sprints, records, earlier)
    earlier_kpis = [record.kpis for record in records[:-1]]
    data["trends"] = as_data(trends(records[-1].kpis, earlier_kpis)) if records else []
    data["last_sprint"] = as_data(records[-1].kpis) if records else None
    data["improvements"] = as_data(improvements(records[-run_history.REMEMBERED :], kept))
    return Answer(data, lambda: as_text(_metrics_page(data, every=every)))


_SUMS = ("total_interventions", "human_acts", "tests_passing", "fix_rounds", "failed_runs")


def _totals(
    remembered: Sequence[SprintRecord], ended: Sequence[SprintRecord], earlier: LegacySprints
) -> dict[str, Any]:
    records = [*remembered, *ended]
    kpis = [record.kpis for record in records]
    total, done = sum(k.total_tasks for k in kpis), sum(k.completed_tasks for k in kpis)
    clarity_count = sum(k.clarity_count for k in kpis)
    clarity = sum((k.avg_clarity or 0.0) * k.clarity_count for k in kpis)
    tools: Counter[str] = Counter()
    for record in ended:
        tools.update(record.tools)
    for sprint in earlier.sprints:
        tools.update(summary_of(sprint.record).tools)
    return {
        "total_sprints": len(records),
        "imported_sprints": len(records) - len(ended),
        "total_tasks": total,
        "completed_tasks": done,
        "completion_rate": round(done / total, 3) if total else 0.0,
        "avg_clarity": round(clarity / clarity_count, 1) if clarity_count else None,
        "clarity_count": clarity_count,
        "avg_sprint_time_s": _mean([k.sprint_time_s for k in kpis]),
        # Older versions did not record when their agents worked.
        "avg_work_time_s": _mean([record.kpis.work_time_s for record in ended]),
        "review_cycles": sum(record.review_cycles for record in records),
        **{name: sum(getattr(k, name) for k in kpis) for name in _SUMS},
        "cost_usd": round(sum(k.cost_usd for k in kpis), 4),
        "total_tokens": sum(k.total_tokens for k in kpis),
        "top_blockers": _top_blockers(records),
        "top_tools": [list(entry) for entry in tools.most_common(5)],
    }


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 1) if values else 0.0


def _top_blockers(records: Sequence[SprintRecord]) -> list[list[Any]]:
    """Blockers with the same meaning count as one, shown in their first wording."""
    counted: Counter[str] = Counter()
    first: dict[str, str] = {}
    for record in records:
        for text in record.blockers:
            key = same_meaning(text)
            counted[key] += 1
            first.setdefault(key, text)
    return [[first[key][:200], times] for key, times in counted.most_common(5)]


_FIGURES = ("all sprints", "")
_TREND = ("number", "last sprint", "mean before", "sprints", "")
_EVERY = ("field of the JSON output", "last sprint")


def _metrics_page(data: dict[str, Any], *, every: bool) -> Page:
    trend_rows = [
        (
            label(t["metric"]), worded(t["metric"], t["now"]), worded(t["metric"], t["before"]),
            str(t["n"]), t["direction"],
        )
        for t in data["trends"]
    ]  # fmt: skip
    numbers = (data["last_sprint"] or {}).items() if every else ()
    named = [(name, "-" if value is None else f"{value:g}") for name, value in numbers]
    live = [i for i in data["improvements"] if i["status"] != "retired"]
    imported = f", {data['imported_sprints']} of them imported" if data["imported_sprints"] else ""
    return Page(
        title=f"{data['project']}: {counted(data['total_sprints'], 'sprint')}{imported}",
        sections=[
            Section("Figures", rows=[_FIGURES, *_figures(data)]),
            Section("The last sprint beside earlier ones", rows=[_TREND, *trend_rows]),
            Section("Blockers", items=[Item(f"{n}x {text}") for text, n in data["top_blockers"]]),
            Section("Tools", items=[Item(f"{n}x {name}") for name, n in data["top_tools"]]),
            Section(
                "Improvements", items=[Item(f"{FATE[i['status']]}: {i['text']}") for i in live[:8]]
            ),
            Section("Every number", rows=[_EVERY, *named]),
        ],
    )


def _figures(data: dict[str, Any]) -> list[tuple[str, str]]:
    """The dozen numbers that people read, each with its unit."""
    share, done = f"{100 * data['completion_rate']:.0f} %", data["completed_tasks"]
    rated = counted(data["clarity_count"], "rated task")
    clarity = "unknown" if data["avg_clarity"] is None else f"{data['avg_clarity']}/10 ({rated})"
    took = f"{span(data['avg_sprint_time_s'])}, working time {span(data['avg_work_time_s'])}"
    each = f" (${data['cost_usd'] / done:.2f} per done task)" if done else ""
    return [
        ("tasks done", f"{done} of {data['total_tasks']} ({share})"),
        ("tasks verified green", str(data["tests_passing"])),
        ("cost", f"${data['cost_usd']:.2f}{each}"),
        ("tokens", str(data["total_tokens"])),
        ("mean time of a sprint", took),
        ("clarity of tasks, by their agents", clarity),
        ("reviews", str(data["review_cycles"])),
        ("fix rounds", str(data["fix_rounds"])),
        ("failed runs of agents", str(data["failed_runs"])),
        ("steps of the supervisor", str(data["total_interventions"])),
        ("acts of people", str(data["human_acts"])),
    ]


@command(project=True, examples=["caloron retro", "caloron retro 3 --output json"])
@sprint_argument
def retro(sprint: str | None, project: str | None) -> Answer:
    """Show the retro of the last sprint (or SPRINT): numbers, trends, improvements, feedback.

    It is computed from the ledger; each sprint that ends also writes it to
    `workspace/retro_report.md` of the project.
    """
    with read_ledger(project, sprint) as (_, connection):
        figures = run_history.figures_of(
            connection, run_history.find_sprint(connection, sprint or "")
        )
        records, kept = (
            run_history.ended_records(connection, last=0),
            run_history.read_kept(connection),
        )
    records, kept = as_of(figures.state.sprint.id, records, kept)
    known = improvements(records[-run_history.REMEMBERED :], kept)
    review = review_sprint(figures.state, figures.runs, records, known, time.time())
    page = write_retro_report(review)

    def text() -> list[str]:
        return (unmarked(page) if output.is_terminal() else page).rstrip("\n").split("\n")

    return Answer(_retro_data(review, page), text)


def _retro_data(review: Retro, page: str) -> dict[str, Any]:
    names = ("kpis", "agents", "roles", "feedback", "analysis", "trends", "improvements")
    sprint = review.state.sprint
    data = {name: as_data(getattr(review, name)) for name in names}
    data |= {"model_analysis": as_data(sprint.retro.answer), "model_problem": sprint.retro.problem}
    return {"sprint_id": sprint.id, "number": sprint.number, **data, "report_markdown": page}
