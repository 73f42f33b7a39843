"""`caloron tick`: drives a sprint for a moment; repeated by cron, to its end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from caloron.cli import output
from caloron.cli.options import Finite, named_sprint, output_option, project_option, sprint_name
from caloron.domain.sprint import State
from caloron.domain.why import why, why_sprint
from caloron.errors import ForgeUnavailable, HeldByAnother, NotFound
from caloron.ledger.locate import ProjectPaths, find_project

if TYPE_CHECKING:
    from caloron.engine.session import Session

_LIMIT_S = 50.0


@click.command()
@click.option(
    "--sprint",
    "sprint_id",
    metavar="ID",
    callback=named_sprint,
    help="The sprint; otherwise the newest of the project that has not ended.",
)
@click.option(
    "--yes", "-y", is_flag=True, help="Say yes to a plan that waits, and go on after `stop`."
)
@click.option(
    "--limit",
    "limit_s",
    type=Finite(min=0, min_open=True, max=86_400),
    default=_LIMIT_S,
    show_default=True,
    metavar="S",
    help="Begin nothing more after so many seconds.",
)
@project_option
@output_option
def tick(sprint_id: str | None, yes: bool, limit_s: float, project: str | None) -> int:
    """Drive a sprint for a moment: look at the forge, decide, do what is due, and leave.

    Repeated, it drives a whole sprint, with nothing running in between but the agents themselves.
    A tick that finds another one, or `caloron sprint`, at work on the project leaves it alone and
    says so. A tick that was killed is simply made again.

    \b
    Exit codes: 0 it goes on, or every task is done; 10 it ended with tasks that need a person;
    2 usage; 3 not found; 8 precondition.

    \b
    Examples:
      caloron sprint "Add a health endpoint" --begin-only
      caloron tick --sprint shop-1
      * * * * *  caloron tick --sprint shop-1 --output json >> ~/shop-1.log   # in a crontab
    """
    from caloron.engine.session import Session
    from caloron.ledger.projects import load_project

    paths, wanted = _found(sprint_id, project)
    try:
        session = Session(load_project(paths.name))
    except HeldByAnother as error:
        output.success("tick", {"skipped": True, "ended": False}, f"Left alone: {error}")
        return 0
    try:
        return _visit(session, wanted, yes=yes, limit_s=limit_s)
    finally:
        session.close()


def _found(sprint_id: str | None, project: str | None) -> tuple[ProjectPaths, str]:
    """The project and the sprint, if one was named; a sprint's id names its project too."""
    if project is None and sprint_id is not None and not sprint_id.isdigit():
        from caloron.engine.visit_by_id import project_of

        return project_of(sprint_id), sprint_id
    paths = find_project(project)
    if not paths.ledger.exists():
        raise NotFound(f"project {paths.name} has no sprint yet", hint='caloron sprint "<goal>"')
    return paths, sprint_name(paths, sprint_id) if sprint_id else ""


def _visit(session: Session, wanted: str, *, yes: bool, limit_s: float) -> int:
    from caloron.cli.live import Lines
    from caloron.cli.sprint_answer import answer
    from caloron.engine.session import Choices
    from caloron.engine.visit import Visit

    name = wanted or next(reversed(session.ledger.unfinished()), session.ledger.last_sprint())
    watcher = Lines(to_stderr=True, phase=session.ledger.state(name).sprint.phase)
    try:
        if yes:
            session.go_on(name, Choices())
        engine = session.engine(name, watcher)
    except ForgeUnavailable as error:
        # Nothing is done before a look; the agents live on, and the next tick collects.
        return _answer(_told(session.ledger.state(name), ended=False) | {"outage": str(error)})
    visited = Visit(engine, limit_s=limit_s).make(approve=yes)
    state = visited.state
    if state.sprint.phase == "ended":
        return answer(session, state, "tick", _told(state, ended=True))
    return _answer(
        _told(state, ended=False)
        | {
            "actions_taken": list(visited.actions_taken),
            "ticks": visited.ticks,
            "agents": visited.agents,
            "outage": visited.outage,
        }
    )


def _answer(data: dict[str, Any]) -> int:
    output.success("tick", data, _text(data))
    return 0


def _told(state: State, *, ended: bool) -> dict[str, Any]:
    tasks = {id: str(task.status) for id, task in state.tasks.items()}
    waits = {
        id: found for id, task in state.tasks.items() if (found := why(state, task, time.time()))
    }
    return {
        "sprint_id": state.sprint.id,
        "number": state.sprint.number,
        "phase": state.sprint.phase,
        "why": _waits(state),
        "statuses": tasks,
        "waits": waits,
        "actions_taken": [],
        "ticks": 0,
        "agents": 0,
        "outage": "",
        "skipped": False,
        "ended": ended,
    }


def _waits(state: State) -> str:
    """Why the sprint as a whole does not go on."""
    if state.sprint.halted:
        return f"waits: {state.sprint.halted}; `caloron tick --yes` lets it go on"
    return "" if state.tasks else why_sprint(state.sprint, time.time())


def _text(data: dict[str, Any]) -> str:
    statuses = list(data["statuses"].values())
    done = f", {statuses.count('Done')} of {output.counted(len(statuses), 'task')} done"
    lines = [f"Sprint {data['sprint_id']}: {data['phase']}{done if statuses else ''}"]
    lines += [data["why"]] if data["why"] else []
    if data["actions_taken"]:
        lines.append(f"decided: {', '.join(data['actions_taken'])}")
    if data["agents"]:
        lines.append(f"at work: {output.counted(data['agents'], 'agent')}")
    if data["outage"]:
        lines.append(data["outage"])
    return "\n".join(lines)
