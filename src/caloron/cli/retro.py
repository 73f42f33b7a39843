"""`caloron retro`: what a sprint teaches."""

from __future__ import annotations

import time
from typing import Any

import click

from caloron.cli.looking import as_data, opened
from caloron.cli.options import named_sprint, output_option, project_option
from caloron.cli.output import is_terminal, success
from caloron.cli.screen import fitted, unmarked
from caloron.domain.learnings import as_of, improvements
from caloron.ledger.figures import REMEMBERED, figures_of, find_sprint, read_kept
from caloron.ledger.records import ended_records
from caloron.stages.retro import Retro, look_back
from caloron.stages.retro_page import write_retro_report


@click.command()
@click.option(
    "--sprint",
    metavar="SPRINT",
    callback=named_sprint,
    help="Another sprint than the last: id or number.",
)
@project_option
@output_option
def retro(sprint: str | None, project: str | None) -> None:
    """Show the retro of the last sprint: numbers, trends, improvements, feedback.

    It is worked out anew from the ledger; each sprint that ends also writes it to
    `workspace/retro_report.md` of the project.

    \b
    Examples:
      caloron retro
      caloron retro --sprint 3 --output json
    """
    with opened(project, sprint) as (_, connection):
        figures = figures_of(connection, find_sprint(connection, sprint or ""))
        records, kept = ended_records(connection, last=0), read_kept(connection)
    records, kept = as_of(figures.state.sprint.id, records, kept)
    found = look_back(figures, records, improvements(records[-REMEMBERED:], kept), time.time())
    page = write_retro_report(found)
    text = fitted(unmarked(page)) if is_terminal() else page
    success("retro", _data(found, page), text.rstrip("\n"))


def _data(found: Retro, page: str) -> dict[str, Any]:
    names = ("kpis", "agents", "roles", "feedback", "analysis", "trends", "improvements")
    sprint = found.state.sprint
    told = {name: as_data(getattr(found, name)) for name in names}
    told |= {"model_analysis": as_data(sprint.insight), "model_problem": sprint.insight_problem}
    for improvement in told["improvements"]:
        del improvement["key"]
    return {"sprint_id": sprint.id, "number": sprint.number, **told, "report_markdown": page}
