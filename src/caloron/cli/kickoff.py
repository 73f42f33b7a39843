"""`caloron kickoff`: a plan to look at before anybody works on it."""

from __future__ import annotations

from typing import Any

import click

from caloron.cli.begin import begin_options, prepare, would_begin
from caloron.cli.options import output_option, project_option
from caloron.cli.sprint import run_new


@click.command()
@click.argument("goal")
@begin_options
@project_option
@output_option
def kickoff(goal: str, dry_run: bool, project: str | None, **given: Any) -> int:
    """Plan GOAL and hold the plan for your approval: no issue is opened, no agent works on it.

    The same as `caloron sprint GOAL --plan-only`. Exit 0: there is a plan, and `caloron resume
    --yes` runs it; a planner is not asked again.

    \b
    Examples:
      caloron kickoff "Add a health endpoint with tests"
      caloron resume --yes
    """
    begin = prepare(goal, project, given, dry_run=dry_run)
    if dry_run:
        return would_begin("kickoff", begin, hold=True)
    return run_new(begin, "kickoff", "hold")
