"""`caloron metrics`: the numbers of all sprints of a project together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from caloron.cli.looking import as_data, has_ledger, opened
from caloron.cli.options import output_option, project_option
from caloron.cli.output import counted, printable, success
from caloron.cli.pages import Item, Page, Section, as_text
from caloron.domain.adopted import facts_of
from caloron.domain.history import remembered, with_adopted
from caloron.domain.learnings import FATE, Kept, SprintRecord, improvements, same_meaning
from caloron.domain.retro import Kpis
from caloron.domain.trends import label, trends, worded
from caloron.durations import span
from caloron.ledger.earlier import Earlier, earlier_sprints
from caloron.ledger.figures import REMEMBERED, read_kept
from caloron.ledger.learnings import kept_in_file
from caloron.ledger.locate import find_project
from caloron.ledger.projects import load_project
from caloron.ledger.records import ended_records


@click.command()
@project_option
@output_option
def metrics(project: str | None) -> None:
    """Show what the ended sprints of the project came to, and how the last one compares.

    \b
    Examples:
      caloron metrics
      caloron metrics --output json
    """
    found = find_project(project)
    records: list[SprintRecord] = []
    kept = Kept()
    if has_ledger(project):
        with opened(project) as (_, connection):
            records, kept = ended_records(connection, last=0), read_kept(connection, -1)
            earlier = earlier_sprints(found, connection)
    else:
        earlier = earlier_sprints(found, None)
        kept = kept_in_file(load_project(found.name).workspace)
    if earlier.problem:
        click.echo(f"warning: {printable(earlier.problem)}", err=True)
    adopted = [remembered(s.id, s.record) for s in reversed(earlier.sprints)]
    kept = with_adopted(kept, adopted)
    data = {"project": found.name} | _totals(kept.sprints, records, earlier)
    data["trends"] = _trends(records)
    data["improvements"] = [
        {"id": i.id, "status": i.status, "priority": i.priority, "text": i.text}
        for i in improvements(records[-REMEMBERED:], kept)
    ]
    success("metrics", data, as_text(_page(data)))


def _totals(
    remembered: Sequence[SprintRecord], ended: Sequence[SprintRecord], earlier: Earlier
) -> dict[str, Any]:
    records = [*remembered, *ended]
    kpis = [record.kpis for record in records]
    total, done = sum(k.total_tasks for k in kpis), sum(k.completed_tasks for k in kpis)
    clarity_n = sum(k.clarity_count for k in kpis)
    clarity = sum((k.avg_clarity or 0.0) * k.clarity_count for k in kpis)
    tools: Counter[str] = Counter()
    for record in ended:
        tools.update(record.tools)
    for sprint in earlier.sprints:
        tools.update(facts_of(sprint.record).tools)
    return {
        "total_sprints": len(records),
        "adopted_sprints": len(records) - len(ended),
        "total_tasks": total,
        "completed_tasks": done,
        "failed_tasks": total - done,
        "completion_rate": round(done / total, 3) if total else 0.0,
        "avg_clarity": round(clarity / clarity_n, 1) if clarity_n else None,
        "clarity_n": clarity_n,
        "avg_sprint_time_s": _mean([k.sprint_time_s for k in kpis]),
        # An older Caloron did not write down when its agents worked.
        "avg_work_time_s": _mean([record.kpis.work_time_s for record in ended]),
        "supervisor_events": sum(k.total_interventions for k in kpis),
        "human_acts": sum(k.human_acts for k in kpis),
        "tests_passing": sum(k.tests_passing for k in kpis),
        "review_cycles": sum(record.review_cycles for record in records),
        "fix_rounds": sum(k.fix_rounds for k in kpis),
        "failed_runs": sum(k.failed_runs for k in kpis),
        "cost_usd": round(sum(k.cost_usd for k in kpis), 4),
        "total_tokens": sum(k.total_tokens for k in kpis),
        "top_blockers": _top_blockers(records),
        "top_tools": [list(entry) for entry in tools.most_common(5)],
    }


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 1) if values else 0.0


def _top_blockers(records: Sequence[SprintRecord]) -> list[list[Any]]:
    """The same blocker in other words is one; it is shown as it was first said."""
    counted: Counter[str] = Counter()
    first: dict[str, str] = {}
    for record in records:
        for text in record.blockers:
            key = same_meaning(text)
            counted[key] += 1
            first.setdefault(key, text)
    return [[first[key][:200], times] for key, times in counted.most_common(5)]


def _trends(records: Sequence[SprintRecord]) -> list[dict[str, Any]]:
    if not records:
        return []
    earlier: list[Kpis] = [record.kpis for record in records[:-1]]
    found: list[dict[str, Any]] = as_data(trends(records[-1].kpis, earlier))
    return found


_TREND = ("number", "last sprint", "mean before", "n", "")


def _page(data: dict[str, Any]) -> Page:
    share = f"{100 * data['completion_rate']:.0f} %"
    clarity = data["avg_clarity"]
    said = "not told" if clarity is None else f"{clarity}/10 (n = {data['clarity_n']})"
    took = f"{span(data['avg_sprint_time_s'])}, working time {span(data['avg_work_time_s'])}"
    lines = [
        f"tasks: {data['completed_tasks']} of {data['total_tasks']} done ({share})",
        f"tasks not done: {data['failed_tasks']}",
        f"clarity: {said}",
        f"time per sprint: {took}",
        f"tasks verified green: {data['tests_passing']}",
        f"reviews: {data['review_cycles']}; fixes: {data['fix_rounds']}",
        f"supervisor steps: {data['supervisor_events']}; acts of people: {data['human_acts']}",
        f"failed runs: {data['failed_runs']}",
        f"cost: ${data['cost_usd']:.2f}, {data['total_tokens']} tokens",
    ]
    rows = [
        (
            label(t["metric"]),
            worded(t["metric"], t["now"]),
            worded(t["metric"], t["before"]),
            str(t["n"]),
            t["direction"],
        )
        for t in data["trends"]
    ]
    live = [i for i in data["improvements"] if i["status"] != "retired"]
    adopted = f", {data['adopted_sprints']} of them adopted" if data["adopted_sprints"] else ""
    return Page(
        title=f"{data['project']}: {counted(data['total_sprints'], 'sprint')}{adopted}",
        sections=[
            Section("All sprints", items=[Item(line) for line in lines]),
            Section("The last sprint beside earlier ones", rows=[_TREND, *rows]),
            Section("Blockers", items=[Item(f"{n}x {text}") for text, n in data["top_blockers"]]),
            Section("Tools", items=[Item(f"{n}x {name}") for name, n in data["top_tools"]]),
            Section(
                "Improvements", items=[Item(f"{FATE[i['status']]}: {i['text']}") for i in live[:8]]
            ),
        ],
    )
