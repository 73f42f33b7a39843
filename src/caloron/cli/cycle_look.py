"""`caloron cycle status` and `log`: where the cycles of an agent stand, also of one of a sprint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from caloron.cli import output
from caloron.cli.cycle_words import (
    agent_argument,
    clean,
    cycles_of,
    files_of,
    hermes_option,
    state_data,
    tell,
)
from caloron.cli.options import output_option, project_option

if TYPE_CHECKING:
    from caloron.agentstate.cycles import Cycles


@click.command()
@agent_argument
@project_option
@hermes_option
@output_option
def status(agent: str, project: str | None, hermes: bool | None) -> int:
    """Show where the cycles of an agent stand: the text that its next wake is told.

    An agent that has no cycles of its own may be one of the project's sprints: see --project.

    \b
    Examples:
      caloron cycle status allegro
      caloron cycle status reviewer-1 --project demo --output json
    """
    cycles, beside = _found(agent, project, hermes)
    looked, report = cycles.look(), cycles.report()
    notices = (*looked.notices, *beside)
    tell(notices)
    at_work = looked.state.status == "open"
    data = {
        "report": report.as_data(),
        "state": state_data(looked.state),
        "alive": at_work and not cycles.dead(looked.state),
        "notices": list(notices),
    }
    output.success("cycle.status", data | files_of(cycles), output.printable(report.text()))
    return 0


@click.command()
@agent_argument
@click.option(
    "-n", "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, metavar="N",
    help="The newest so many lines.",
)  # fmt: skip
@click.option("--cycle", "number", type=click.IntRange(1, 10**12), metavar="N", help="Of this one.")
@project_option
@hermes_option
@output_option
def log(
    agent: str, limit: int, number: int | None, project: str | None, hermes: bool | None
) -> int:
    """Show the log of an agent's cycles, one line for each thing that happened.

    \b
    Examples:
      caloron cycle log allegro -n 20
      caloron cycle log allegro --cycle 42
      caloron cycle log reviewer-1 --project demo
    """
    from caloron.agentstate.cycles.log import shown

    cycles, beside = _found(agent, project, hermes)
    tell(beside)
    wanted = 10**6 if number else limit
    entries = [e for e in cycles.log.newest(wanted) if number in (None, e["cycle"])][-limit:]
    lines = [shown(entry) for entry in entries]
    data = {"entries": entries, "notices": list(beside)} | files_of(cycles)
    output.success("cycle.log", data, output.printable("\n".join(lines)) or "Nothing yet.")
    return 0


def _found(agent: str, project: str | None, hermes: bool | None) -> tuple[Cycles, tuple[str, ...]]:
    """Whose cycles are meant, and a word where an agent of the project has that name too.

    An agent's own cycles come first; those of a sprint are its ledger's, and shown if there are no
    others or a project is named.
    """
    from caloron.errors import NotFound, UsageError

    if project is not None:
        if hermes is not None:
            raise UsageError("an agent of a project keeps no files in ~/.hermes",
                             hint="leave out --project, or --hermes")  # fmt: skip
        of_sprint = _of_sprint(agent, project)
        if of_sprint is None:
            raise NotFound(f"no agent {agent!r} has a home in project {project}",
                           hint=f"caloron agents list --project {project}")  # fmt: skip
        return of_sprint, ()
    own = cycles_of(agent, hermes)
    of_sprint = _of_sprint(agent, None) if hermes is None else None
    if of_sprint is None:
        return own, ()
    if not own.look().state.cycle_number:
        return of_sprint, ()
    name = of_sprint.places.state.parents[2].name
    return own, (f"project {name} has an agent {agent} too: add --project {name}",)


def _of_sprint(agent: str, project: str | None) -> Cycles | None:
    """The cycles of an agent of a project; None if there is no such home."""
    from caloron.engine.home_view import cycles_in
    from caloron.errors import CaloronError
    from caloron.ids import is_valid_id
    from caloron.ledger.locate import current_project_name, find_project

    try:
        homes = find_project(current_project_name() if project is None else project).agents
    except CaloronError:
        # Cycles need no project; one that was named has to be there.
        if project is not None:
            raise
        return None
    where = homes / clean(agent)
    if not is_valid_id(agent) or not where.is_dir():
        return None
    # The agent is one of this project: now the active project is announced.
    find_project(project)
    return cycles_in(where)
