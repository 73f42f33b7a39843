"""`caloron stop`: stop the running sprint; it can be resumed."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from typing import Any

from caloron.cli import output
from caloron.cli.app import Answer, DryRun, command, planned
from caloron.cli.project_view import orphaned_agents
from caloron.errors import CaloronError, PreconditionFailed
from caloron.ids import sprint_number
from caloron.ledger import reading
from caloron.ledger.locate import ProjectPaths, find_project
from caloron.store import log
from caloron.store.lock import holder, process_of

_STOP_TIMEOUT_S = 60.0


@command(project=True, dry_run=True, examples=["caloron stop"])
def stop(dry_run: bool, project: str | None) -> Answer | DryRun:
    """Stop the running sprint: its agents end, their work is saved.

    Also ends the agents of a sprint whose engine was killed.
    """
    paths = find_project(project)
    engine = holder(paths.engine_lock)
    if dry_run:
        target = engine and (engine.get("sprint") or f"process {engine.get('pid')}")
        if engine is None:
            target = _without_engine(paths)
        return DryRun(planned("stop", str(target))) if target else DryRun()
    name = _stop_engine(paths, engine) if engine is not None else ""
    name = name or _stop_without_engine(paths)
    if engine is None and not name:
        data: dict[str, Any] = {"project": paths.name, "stopped": False}
        return Answer(data, f"Nothing is running in project {paths.name}.")
    data = {"project": paths.name, "stopped": True, "sprint_id": name}
    data["number"] = sprint_number(name)
    return Answer(data, f"Stopped {name}. Continue with: caloron resume {name}")


def _without_engine(paths: ProjectPaths) -> str:
    """The sprint that `caloron tick` drives, or whose engine was killed; empty: none."""
    if not paths.ledger.exists():
        return ""
    from caloron.ledger.ledger import read_state
    from caloron.ledger.reading import open_ledger

    with closing(open_ledger(paths.ledger)) as connection:
        for name in reading.ticked_sprints(connection):
            state = read_state(connection, name)
            if state.sprint.phase != "ended" and not state.sprint.availability.pause_reason:
                return state.sprint.id
        agents = orphaned_agents(paths, connection)
    return str(agents[0]["sprint_id"]) if agents else ""


def _stop_without_engine(paths: ProjectPaths) -> str:
    name = _without_engine(paths)
    if name:
        from caloron.cli.commands.sprint.live import Lines
        from caloron.engine.one_shot import halt, halt_without_forge
        from caloron.engine.session import exclusive
        from caloron.ledger.projects import load_project

        with exclusive(load_project(paths.name)) as session:
            try:
                engine = session.engine(name, Lines(to_stderr=True))
            except CaloronError as error:
                log.warning("agents are ended without the forge", error=error)
                output.note(f"{error}; the agents are ended, and `resume` saves their work")
                halt_without_forge(session.project, session.ledger, name)
            else:
                halt(engine)
    return name


def _stop_engine(paths: ProjectPaths, engine: dict[str, Any]) -> str:
    """Signal the engine and wait until it has saved; returns the sprint that it drove."""
    if not process_of(engine).send_signal(signal.SIGTERM) and holder(paths.engine_lock) is not None:
        raise PreconditionFailed(
            f"project {paths.name} is in use by process {engine.get('pid', '?')} of another machine"
            f" or container ({engine.get('host', 'unknown')}), which cannot be reached from here",
            hint="stop it there, with Ctrl-C or caloron stop",
        )
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while holder(paths.engine_lock) is not None:
        if time.monotonic() > deadline:
            raise PreconditionFailed(
                f"process {engine['pid']} has not stopped yet", hint="wait, then check again"
            )
        time.sleep(0.05)
    return str(engine.get("sprint", ""))
