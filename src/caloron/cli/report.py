"""`caloron report`: the morning page of a sprint: what was merged, what waits, what it cost."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from caloron.cli.left_running import left_running
from caloron.cli.looking import dollars, is_running, local_time, opened, options_for
from caloron.cli.options import named_sprint, output_option, project_option
from caloron.cli.output import success
from caloron.cli.pages import FORMATS, Item, Linked, Page, Section, render
from caloron.cli.report_data import collect
from caloron.domain.needs import Need
from caloron.domain.retro import AgentKpis, Kpis
from caloron.durations import span
from caloron.failures import log_lines
from caloron.ledger.figures import figures_of, find_sprint, lost_engines
from caloron.ledger.ledger import read_state


@click.command()
@click.argument("sprint", required=False, callback=named_sprint)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="The page as text, Markdown or one HTML file; with --output json it is in `page`.",
)
@project_option
@output_option
def report(sprint: str | None, form: str, project: str | None) -> None:
    """Show what the last sprint (or SPRINT: its id or number) came to.

    What was merged, what waits for you and the commands for it, what it cost, and what went wrong.

    \b
    Examples:
      caloron report
      caloron report 3 --format html > report.html
      caloron report --output json
    """
    with opened(project, sprint) as (found, connection):
        name = find_sprint(connection, sprint or "")
        state, runs = read_state(connection, name), figures_of(connection, name).runs
        lost, left = lost_engines(connection, name), left_running(found, connection, name)
    running, options = is_running(found, name), options_for(found, project)
    data = collect(
        found, state, runs, lost_engines=lost, left=left, running=running, options=options
    )
    page = render(_page(data), form)
    if form != "text":
        data["page"] = page
    success("report", data, page.rstrip("\n"))


def _page(data: dict[str, Any]) -> Page:
    kpis = msgspec.convert(data["kpis"], Kpis)
    merged = [t for t in data["tasks"] if t["status"] == "Done"]
    others = [t for t in data["tasks"] if t["status"] != "Done"]
    done = f"{kpis.completed_tasks} of {kpis.total_tasks} tasks done"
    bring = [Item("Bring what was merged to you:", [data["bring"]])] if data["bring"] else []
    looks = [task["pr_command"] for task in merged if task["pr_command"]]
    pages = [task["pr_url"] for task in merged if task["pr_url"]]
    bring += [Item("Look at what was merged:", looks, pages)] if looks else []
    return Page(
        title=f"Sprint {data['sprint_id']}: {done}",
        lead=data["goal"],
        sections=[
            Section("In short", items=[Item(line) for line in _in_short(data, kpis)]),
            Section("Done", rows=[_HEAD, *(_done_row(t) for t in merged)], items=bring),
            Section("Waits for you", items=[_need(need) for need in data["needs"]]),
            Section("Not done", rows=[_LEFT, *(_left_row(t) for t in others)]),
            Section("Changes requested", items=[_rejection(r) for r in data["rejections"]]),
            Section("Problems", items=[_problem(p) for p in data["problems"]]),
            Section("Agents", rows=[_AGENTS, *map(_agent_row, data["agents"])]),
        ],
    )


def _in_short(data: dict[str, Any], kpis: Kpis) -> list[str]:
    ended = f", ended {local_time(data['ended_at'])}" if data["ended_at"] else ""
    began = f"began {local_time(data['started_at'])}"
    took = f"{span(kpis.sprint_time_s)} in total, working time {span(kpis.work_time_s)}"
    lines = [f"{data['standing']}: {began}{ended}, {took}"]
    guess = f" (${kpis.estimated_cost_usd:.2f} of it a guess)" if kpis.estimated_cost_usd else ""
    lines.append(
        f"cost: ${kpis.cost_usd:.2f} of ${data['budget_usd']:.2f}{guess},"
        f" {kpis.total_tokens} tokens; agents worked {span(data['agent_s'])}"
    )
    how = f" ({data['verify']})" if data["verify"] else ""
    red = f" {kpis.verify_failures} of {kpis.verify_runs} runs red;" if kpis.verify_runs else ""
    lines.append(
        f"verification{how}: {kpis.tests_passing} of {kpis.completed_tasks} done tasks green;"
        f"{red} main before: {data['main_before']}"
    )
    lines.append(
        f"reviews: {sum(t['review_rounds'] for t in data['tasks'])}; fixes: {kpis.fix_rounds};"
        f" conflicts: {kpis.conflict_count}; supervisor steps: {kpis.total_interventions};"
        f" acts of people: {kpis.human_acts}"
    )
    if not data["sandboxed"]:
        lines.append("UNSANDBOXED: its agents ran with all your files within reach")
    return lines


_HEAD = ("task", "title", "pull request", "change", "verified", "reviews", "cost", "elapsed")
_LEFT = ("task", "title", "status", "why", "reviews", "cost", "elapsed")
_AGENTS = ("agent", "role", "runs", "failed", "time", "cost", "tokens", "clarity")


def _done_row(task: dict[str, Any]) -> tuple[str, ...]:
    diff = task["diff"]
    change = f"{_files(diff['files'])} +{diff['added']} -{diff['removed']}" if diff else "-"
    return (
        task["id"],
        task["title"],
        Linked(f"#{task['pr_number']} {task['pr_state']}", task["pr_url"])
        if task["pr_number"]
        else task["why"],
        change,
        Linked(task["verification"] or "-", task["verify_log"]),
        str(task["review_rounds"]),
        dollars(task["cost_usd"]),
        _time(task),
    )


def _left_row(task: dict[str, Any]) -> tuple[str, ...]:
    return (
        task["id"],
        task["title"],
        task["status"],
        task["why"],
        str(task["review_rounds"]),
        dollars(task["cost_usd"]),
        _time(task),
    )


def _files(count: int) -> str:
    return f"{count} file" if count == 1 else f"{count} files"


def _time(task: dict[str, Any]) -> str:
    return "-" if task["elapsed_s"] is None else span(task["elapsed_s"])


def _agent_row(row: dict[str, Any]) -> tuple[str, ...]:
    agent = msgspec.convert(row, AgentKpis)
    return (
        agent.agent,
        agent.role,
        str(agent.runs),
        str(agent.failed_runs),
        span(agent.time_s),
        dollars(agent.cost_usd),
        str(agent.tokens),
        "-" if agent.clarity is None else f"{agent.clarity:.0f}/10",
    )


def _need(found: dict[str, Any]) -> Item:
    return need_item(msgspec.convert(found | {"sprint": found["sprint_id"]}, Need))


def need_item(need: Need) -> Item:
    """One thing that waits for a person, as every page says it."""
    holds = f" (holds {', '.join(need.holds)})" if need.holds else ""
    printed = [line for file in need.files for line in log_lines(file)]
    text = f"{need.task or need.sprint}: {need.why}{holds}"
    return Item(text, need.commands, need.files, printed)


def _rejection(found: dict[str, str]) -> Item:
    return Item(f"{found['task']}: {found['reason']} ({found['author']})")


def _problem(problem: dict[str, Any]) -> Item:
    times = f" ({problem['times']} times)" if problem["times"] > 1 else ""
    who = " ".join(part for part in (problem["task"], problem["role"]) if part)
    text = f"{who}: {problem['what']}{times}" if who else problem["what"]
    return Item(text, files=[problem["log"]] if problem["log"] else ())
