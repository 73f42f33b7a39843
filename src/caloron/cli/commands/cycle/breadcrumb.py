"""`caloron cycle breadcrumb`: what an agent leaves where it works, for people and its next wake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from caloron.cli import output
from caloron.cli.app import dry_run_option, output_option, project_option
from caloron.cli.format import printable

if TYPE_CHECKING:
    from caloron.cycles import CycleState
    from caloron.cycles.report import Breadcrumb
    from caloron.engine.cycle_breadcrumbs import Left, Place

_NUMBER = click.IntRange(min=1, max=2**31 - 1)


@click.command()
@click.argument("agent")
@click.option("--issue", type=_NUMBER, metavar="N", help="Write it on this issue.")
@click.option("--pull", type=_NUMBER, metavar="N", help="Write it on this pull request.")
@click.option(
    "--hermes/--no-hermes",
    "hermes",
    default=None,
    help="The files are in ~/.hermes, or not (default: if that folder is there).",
)
@dry_run_option
@project_option
@output_option
def breadcrumb(
    agent: str,
    issue: int | None,
    pull: int | None,
    hermes: bool | None,
    dry_run: bool,
    project: str | None,
) -> int:
    """Tell on the forge how far the work of an agent is; without a number, only print it.

    One comment is kept up to date, and from the second cycle on a section in the description; each
    is written once, however often this is called or killed. What people write around the section
    stays, and whoever deletes comment or section does not get it again.

    \b
    Examples:
      caloron cycle breadcrumb allegro
      caloron cycle breadcrumb allegro --issue 12
      caloron cycle breadcrumb allegro --pull 14 --project shop --dry-run
    """
    from caloron.errors import UsageError

    if issue is not None and pull is not None:
        raise UsageError("--issue and --pull exclude each other", hint="one call for each")
    state, crumb = _crumb(agent, hermes)
    if issue is None and pull is None:
        if dry_run:
            return output.dry_run("cycle.breadcrumb", [{"action": "print", "target": crumb.task}])
        output.success("cycle.breadcrumb", _data(state, crumb, None), printable(crumb.text))
        return 0
    from caloron.engine.cycle_breadcrumbs import Place, leave
    from caloron.ledger.projects import load_project

    place = Place(number=issue or pull or 0, is_pull=pull is not None)
    found = load_project(project)
    if dry_run:
        planned = [{"action": "comment on", "target": place.words}]
        if state.work_cycles > 1:
            planned.append({"action": "describe", "target": place.words})
        return output.dry_run("cycle.breadcrumb", planned)
    left = leave(found, state, crumb, place)
    _wake(found.name)
    if not output.wants_json():
        for line in left.refused:
            output.note(f"note: of an earlier call: {line}")
    output.success("cycle.breadcrumb", _data(state, crumb, (place, left)), _text(place, left))
    return 0


def _crumb(agent: str, hermes: bool | None) -> tuple[CycleState, Breadcrumb]:
    from caloron.cycles import Cycles, location_of
    from caloron.cycles.report import breadcrumb as crumb_of
    from caloron.errors import NotFound

    name = agent.encode("utf-8", "replace").decode()
    state = Cycles(location_of(name, hermes=hermes)).load().state
    crumb = crumb_of(state)
    if crumb is None:
        raise NotFound(
            f"{agent} has no work in progress",
            hint=f'name it: caloron cycle begin {agent} --work "issue 12"',
        )
    return state, crumb


def _wake(project: str) -> None:
    """An engine that runs looks at once."""
    from caloron.cli.commands.forge import wake_engine
    from caloron.ledger.locate import find_project

    wake_engine(find_project(project))


def _data(
    state: CycleState, crumb: Breadcrumb, written: tuple[Place, Left] | None
) -> dict[str, Any]:
    from caloron.slicing import to_slice

    data: dict[str, Any] = {
        "agent": state.agent,
        "task": crumb.task,
        "key": crumb.key,
        "text": crumb.text,
        "cycle_number": state.cycle_number,
        "work_cycles": state.work_cycles,
        "slice_it": to_slice(state.work_cycles),
        "written": None,
    }
    if written is not None:
        place, left = written
        data["written"] = {
            "number": place.number,
            "pull": place.is_pull,
            "url": left.url,
            "comment": None if left.trail.deleted else left.trail.comment,
            "section": left.trail.section,
            "done": left.done,
            "refused": list(left.refused),
        }
    return data


def _text(place: Place, left: Left) -> str:
    if left.trail.deleted:
        said = "its comment was deleted there and is not written again"
    elif left.done:
        said = "up to date now"
    else:
        said = "up to date already"
    return " ".join(filter(None, (f"Breadcrumb on {place.words}: {said}.", left.url)))
