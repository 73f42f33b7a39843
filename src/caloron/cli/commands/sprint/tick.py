"""`caloron tick`: advance a sprint once; cron repeats it to the end of the sprint."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import click

from caloron.cli.app import Answer, Number, attributes, command, named_sprint, sprint_name
from caloron.cli.commands.sprint.live import Lines
from caloron.cli.commands.sprint.result import sprint_answer
from caloron.cli.format import counted
from caloron.domain.model.sprint import State
from caloron.domain.reporting.explain import why, why_sprint
from caloron.engine.one_shot import OneShotRun
from caloron.engine.session import Choices, Session
from caloron.errors import ForgeUnavailable, InUse, NotFound
from caloron.ledger.locate import ProjectPaths, find_project, project_of_sprint
from caloron.ledger.projects import load_project

_LIMIT_S = 50.0


@command(
    project=True,
    examples=[
        'caloron sprint "Add a health endpoint" --begin-only',
        "caloron tick --sprint shop-1",
        "* * * * *  caloron tick --sprint shop-1 --output json >> ~/shop-1.log   # in a crontab",
    ],
)
@click.option(
    "--sprint",
    "sprint_id",
    metavar="ID",
    callback=named_sprint,
    help="The sprint (default: the newest of the project that has not ended).",
)
@click.option(
    "--yes", "-y", is_flag=True, help="Approve a plan that waits, and continue after `stop`."
)
@click.option(
    "--limit",
    "limit_s",
    type=Number(0, 86_400, above=True),
    default=_LIMIT_S,
    show_default=True,
    metavar="S",
    help="Start nothing more after this many seconds.",
)
def tick(sprint_id: str | None, yes: bool, limit_s: float, project: str | None) -> Answer | int:
    """Advance a sprint once: poll the forge, decide, do what is due, and exit.

    Repeated, it drives a whole sprint; between two ticks only the agents run. A tick is skipped
    while another one, or `caloron sprint`, runs on the project. A tick that was killed is simply
    repeated.

    Exit codes: 0 the sprint continues, or every task is done; 10 it ended with tasks that need a
    person; 2 usage; 3 not found; 8 precondition.
    """
    paths, wanted = _find(sprint_id, project)
    try:
        session = Session(load_project(paths.name))
    except InUse as error:
        return Answer({"skipped": True, "ended": False}, f"Skipped: {error}")
    with closing(session):
        return _tick(session, wanted, yes=yes, limit_s=limit_s)


def _find(sprint_id: str | None, project: str | None) -> tuple[ProjectPaths, str]:
    """The project, and the sprint if one was named; a sprint's id names its project too."""
    if project is None and sprint_id is not None and not sprint_id.isdigit():
        return project_of_sprint(sprint_id), sprint_id
    paths = find_project(project)
    if not paths.ledger.exists():
        raise NotFound(f"project {paths.name} has no sprint yet", hint='caloron sprint "<goal>"')
    return paths, sprint_name(paths, sprint_id) if sprint_id else ""


def _tick(session: Session, wanted: str, *, yes: bool, limit_s: float) -> Answer | int:
    name = wanted or next(reversed(session.ledger.unfinished()), session.ledger.last_sprint())
    listener = Lines(to_stderr=True, phase=session.ledger.state(name).sprint.phase)
    try:
        if yes:
            session.go_on(name, Choices())
        engine = session.engine(name, listener)
    except ForgeUnavailable as error:
        # Nothing is done before a poll; the agents keep running, and the next tick collects them.
        return _answer(_data(session.ledger.state(name)) | {"outage": str(error)})
    result = OneShotRun(engine, limit_s=limit_s, approve=yes).run()
    if result.state.sprint.phase == "ended":
        return sprint_answer(session, result.state, _data(result.state) | {"ended": True})
    taken = attributes(result, "actions_taken", "ticks", "agents", "outage")
    return _answer(_data(result.state) | taken)


def _data(state: State) -> dict[str, Any]:
    now = time.time()
    reasons = {id: why(state, task, now) for id, task in state.tasks.items()}
    sprint_why = "" if state.tasks else why_sprint(state.sprint, now)
    if pause := state.sprint.availability.pause_reason:
        sprint_why = f"waits: {pause}; `caloron tick --yes` continues"
    return {
        "sprint_id": state.sprint.id,
        "number": state.sprint.number,
        "phase": state.sprint.phase,
        "why": sprint_why,
        "statuses": {id: str(task.status) for id, task in state.tasks.items()},
        "waits": {id: reason for id, reason in reasons.items() if reason},
        "actions_taken": [],
        "ticks": 0,
        "agents": 0,
        "outage": "",
        "skipped": False,
        "ended": False,
    }


def _answer(data: dict[str, Any]) -> Answer:
    statuses = list(data["statuses"].values())
    done = f", {statuses.count('Done')} of {counted(len(statuses), 'task')} done"
    lines = [f"Sprint {data['sprint_id']}: {data['phase']}{done if statuses else ''}"]
    lines += [data["why"]] if data["why"] else []
    if data["actions_taken"]:
        lines.append(f"decided: {', '.join(data['actions_taken'])}")
    if data["agents"]:
        lines.append(f"running: {counted(data['agents'], 'agent')}")
    if data["outage"]:
        lines.append(data["outage"])
    return Answer(data, "\n".join(lines))
