"""`caloron inbox`: only what needs you, with the commands for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from caloron.cli.left_running import left_running, with_running
from caloron.cli.looking import has_ledger, is_running, needs_data, opened, options_for
from caloron.cli.options import output_option, project_option
from caloron.cli.output import success
from caloron.cli.pages import Page, Section, as_text
from caloron.cli.report import need_item
from caloron.domain.needs import Need, needs_of
from caloron.ledger.figures import (
    find_sprint,
    merging_sprints,
    sprint_numbers,
    waiting_states,
)
from caloron.ledger.ledger import read_state
from caloron.ledger.locate import ProjectPaths, find_project
from caloron.store.lock import holder

if TYPE_CHECKING:
    from caloron.git.checkout import Checkout

#: What was merged longer ago than so many sprints is looked for no further.
_LOOKED_AT = 50


@click.command()
@project_option
@output_option
def inbox(project: str | None) -> None:
    """List what waits for you in every sprint of the project, newest first.

    \b
    Examples:
      caloron inbox
      caloron inbox --output json
    """
    found, states, left, numbers = find_project(project), [], [], {}
    if has_ledger(project):
        with opened(project) as (_, connection):
            states = waiting_states(connection)
            left = left_running(found, connection)
            numbers = sprint_numbers(connection)
    options = options_for(found, project)
    needs = [
        with_running(need, [a for a in left if a["sprint_id"] == need.sprint], options)
        for state in reversed(states)
        for need in needs_of(state, running=is_running(found, state.sprint.id), options=options)
    ]
    needs += _to_take(found, options)
    data = {"project": found.name, "needs": needs_data(needs, numbers)}
    success("inbox", data, _text(needs))


def _to_take(found: ProjectPaths, options: str) -> list[Need]:
    """What was merged and is not in the user's branch, once nobody is at work any more."""
    from caloron.cli.looking import forge_note
    from caloron.git.checkout import Checkout
    from caloron.git.command import git
    from caloron.ledger.projects import load_project

    project = load_project(found.name)
    repo = project.repository
    if not repo or not found.ledger.exists() or holder(found.engine_lock) is not None:
        return []
    checkout = Checkout(repo)
    branch = f"refs/heads/{forge_note(found)['main']}"
    main = git(project.git_here, "rev-parse", "--verify", branch, check=False)
    if not main or not checkout.top.is_dir() or checkout.contains(main):
        return []
    last = _merged_in(found, checkout)
    why = f"what was merged is not in the branch that is checked out in {repo}"
    return [Need(kind="take", sprint=last, why=why, commands=(f"caloron take{options}",))]


def _merged_in(found: ProjectPaths, checkout: Checkout) -> str:
    """The newest sprint of whose work something is missing in the branch."""
    from caloron.cli.take import merge_commits

    with opened(found.name) as (_, connection):
        merged = merging_sprints(connection, _LOOKED_AT)
        for name in merged:
            commits = merge_commits(read_state(connection, name))
            if commits and not checkout.contains(*commits):
                return name
        return merged[0] if merged else find_sprint(connection)


def _text(needs: list[Need]) -> str:
    if not needs:
        return "Nothing needs you."
    count = "One thing needs you" if len(needs) == 1 else f"{len(needs)} things need you"
    sprints = dict.fromkeys(need.sprint for need in needs)
    sections = [
        Section(f"Sprint {name}", items=[need_item(n) for n in needs if n.sprint == name])
        for name in sprints
    ]
    return as_text(Page(title=count, sections=sections))
