"""`caloron show`: one sprint with each of its tasks: status, tools, tests and cost."""

from __future__ import annotations

import time
from typing import Any

import click

from caloron.cli.looking import dollars, opened
from caloron.cli.options import named_sprint, output_option, project_option
from caloron.cli.output import success
from caloron.cli.pages import Item, Page, Section, as_text
from caloron.domain.adopted import facts_of
from caloron.domain.retro import Run, blockers_of, compute_kpis, tools_of, verification_of
from caloron.domain.sprint import State, Task
from caloron.durations import span
from caloron.ledger.earlier import find_earlier
from caloron.ledger.figures import Figures, figures_of, find_sprint
from caloron.ledger.identity import open_ledger
from caloron.ledger.locate import ProjectPaths, find_project
from caloron.ledger.projections import iso


@click.command()
@click.argument("sprint", callback=named_sprint)
@project_option
@output_option
def show(sprint: str, project: str | None) -> None:
    """Show SPRINT, by its id or its number, with each of its tasks.

    \b
    Examples:
      caloron show 3
      caloron show shop-3 --output json
    """
    data = _adopted(find_project(project), sprint) or _own(project, sprint)
    success("show", data, as_text(_page(data)))


def _own(project: str | None, sprint: str) -> dict[str, Any]:
    with opened(project, sprint) as (_, connection):
        return _record(figures_of(connection, find_sprint(connection, sprint)))


def _adopted(found: ProjectPaths, named: str) -> dict[str, Any] | None:
    """A sprint of an older Caloron: its numbers are all that there is of it."""
    connection = open_ledger(found.ledger) if found.ledger.exists() else None
    try:
        sprint = find_earlier(found, connection, named)
    finally:
        if connection is not None:
            connection.close()
    if sprint is None:
        return None
    facts = facts_of(sprint.record)
    failed = f"it ended with exit code {facts.exit_code}" if facts.exit_code else ""
    return {
        "sprint_id": sprint.id,
        "number": sprint.number,
        "goal": facts.goal,
        "phase": "failed" if failed else "ended",
        "stopped": failed,
        "completed_at": facts.completed_at or None,
        "duration_s": facts.duration_s,
        "work_time_s": None,
        "total_tasks": facts.total,
        "completed_tasks": facts.completed,
        "failed_tasks": facts.failed,
        "avg_clarity": facts.clarity,
        "supervisor_events": facts.interventions,
        "human_acts": None,
        "tests_passing": None,
        "review_cycles": None,
        "cost_usd": None,
        "tokens": None,
        "tools_used": dict.fromkeys(facts.tools, 1),
        "blockers": list(facts.blockers),
        "tasks": [],
        "adopted": True,
    }


def _record(figures: Figures) -> dict[str, Any]:
    state, runs = figures.state, figures.runs
    kpis, sprint = compute_kpis(state, runs, time.time()), state.sprint
    return {
        "sprint_id": sprint.id,
        "number": sprint.number,
        "goal": sprint.goal,
        "phase": sprint.phase,
        "stopped": sprint.stopped,
        "completed_at": iso(sprint.ended_at),
        "duration_s": kpis.sprint_time_s,
        "work_time_s": kpis.work_time_s,
        "total_tasks": kpis.total_tasks,
        "completed_tasks": kpis.completed_tasks,
        "failed_tasks": kpis.total_tasks - kpis.completed_tasks,
        "avg_clarity": kpis.avg_clarity,
        "supervisor_events": kpis.total_interventions,
        "human_acts": kpis.human_acts,
        "tests_passing": kpis.tests_passing,
        "review_cycles": sum(len(task.reviewed) for task in state.tasks.values()),
        "cost_usd": kpis.cost_usd,
        "tokens": kpis.total_tokens,
        "tools_used": tools_of(state, runs),
        "blockers": list(blockers_of(state)),
        "tasks": [_task(state, task, runs) for task in state.tasks.values()],
        "adopted": False,
    }


def _task(state: State, task: Task, runs: tuple[Run, ...]) -> dict[str, Any]:
    mine = tuple(run for run in runs if run.task == task.id)
    alone = State(sprint=state.sprint, tasks={task.id: task})
    return {
        "id": task.id,
        "title": task.plan.title,
        "status": str(task.status),
        "reason": task.reason,
        "tests": verification_of(task),
        "tools": sorted(tools_of(alone, mine)),
        "clarity": (task.feedback.task_clarity or None) if task.feedback else None,
        "assessment": task.feedback.self_assessment if task.feedback else None,
        "review_rounds": len(task.reviewed),
        "runs": sum(run.role != "verify" for run in mine),
        "cost_usd": round(task.spent.usd, 4),
        "tokens": task.spent.tokens_in + task.spent.tokens_out,
        "issue_number": task.issue,
        "pr_number": task.pull,
    }


_HEAD = ("task", "status", "tests", "reviews", "runs", "clarity", "cost", "tools", "reason")


def _page(data: dict[str, Any]) -> Page:
    done = f"{data['completed_tasks']}/{data['total_tasks']} tasks"
    clarity = data["avg_clarity"]
    lines = [
        f"{data['phase']}, {span(data['duration_s'])} in total",
        f"clarity: {'not told' if clarity is None else f'{clarity}/10'}",
        f"supervisor steps: {data['supervisor_events']}",
        *([f"stopped: {data['stopped']}"] if data["stopped"] else []),
    ]
    if data["adopted"]:
        lines.append("adopted: an older Caloron ran it, and left these numbers alone")
    else:
        lines[0] += f", working time {span(data['work_time_s'])}"
        lines[1:1] = [f"cost: ${data['cost_usd']:.2f}, {data['tokens']} tokens"]
        lines[3] += f"; acts of people: {data['human_acts']}"
        lines[3] += f"; tasks verified green: {data['tests_passing']}"
    return Page(
        title=f"Sprint {data['sprint_id']} (#{data['number']}): {done}",
        lead=data["goal"],
        sections=[
            Section("In short", items=[Item(line) for line in lines]),
            Section("Tasks", rows=[_HEAD, *(_row(task) for task in data["tasks"])]),
            Section("Blockers", items=[Item(text) for text in data["blockers"][:10]]),
        ],
    )


def _row(task: dict[str, Any]) -> tuple[str, ...]:
    return (
        task["id"],
        task["status"],
        task["tests"] or "-",
        str(task["review_rounds"]),
        str(task["runs"]),
        "-" if task["clarity"] is None else f"{task['clarity']}/10",
        dollars(task["cost_usd"]),
        ", ".join(task["tools"][:4]) or "-",
        task["reason"],
    )
