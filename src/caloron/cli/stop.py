"""`caloron stop`: end the running sprint for now."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from typing import Any

import click

from caloron.cli import output
from caloron.cli.options import dry_run_option, output_option, project_option
from caloron.errors import CaloronError, PreconditionFailed
from caloron.ids import sprint_number
from caloron.ledger.locate import ProjectPaths, find_project
from caloron.store import log
from caloron.store.lock import holder, process_of

_STOP_TIMEOUT_S = 60.0


@click.command()
@dry_run_option
@project_option
@output_option
def stop(dry_run: bool, project: str | None) -> int:
    """Save and stop the running sprint; agents end, their work is kept.

    Also ends the agents of a sprint whose engine was killed.

    \b
    Example:
      caloron stop
    """
    found = find_project(project)
    who = holder(found.engine_lock)
    if dry_run:
        named = who and (who.get("sprint") or f"process {who.get('pid')}")
        if who is None and found.ledger.exists():
            named = _visited(found) or _left(found)
        return output.dry_run("stop", [{"action": "stop", "target": named}] if named else [])
    name = _without_engine(found) if who is None else ""
    if who is None and not name:
        data = {"project": found.name, "stopped": False}
        output.success("stop", data, f"Nothing is running in project {found.name}.")
        return 0
    if who is not None:
        name = _end(found, who) or _without_engine(found)
    data = {"project": found.name, "stopped": True, "sprint_id": name}
    data["number"] = sprint_number(name)
    output.success("stop", data, f"Stopped {name}. Go on with: caloron resume {name}")
    return 0


def _without_engine(found: ProjectPaths) -> str:
    """Stop the sprint that `caloron tick` drives, or whose engine was killed; empty: none."""
    name = (_visited(found) or _left(found)) if found.ledger.exists() else ""
    if name:
        from caloron.cli.live import Lines
        from caloron.engine.session import held
        from caloron.engine.visit import halt, halt_without_forge
        from caloron.ledger.projects import load_project

        with held(load_project(found.name)) as session:
            try:
                engine = session.engine(name, Lines(to_stderr=True))
            except CaloronError as error:
                log.warning("agents are ended without the forge", error=error)
                output.aside(f"{error}; the agents are ended, and `resume` saves their work")
                halt_without_forge(session.project, session.ledger, name)
            else:
                halt(engine)
    return name


def _visited(found: ProjectPaths) -> str:
    from caloron.ledger.identity import open_ledger
    from caloron.ledger.ledger import read_state

    with closing(open_ledger(found.ledger)) as connection:
        names = connection.execute("SELECT key FROM kv WHERE key LIKE 'visited/%'").fetchall()
        for row in names:
            state = read_state(connection, str(row[0]).partition("/")[2])
            if state.sprint.phase != "ended" and not state.sprint.halted:
                return state.sprint.id
    return ""


def _left(found: ProjectPaths) -> str:
    from caloron.cli.left_running import left_running
    from caloron.ledger.identity import open_ledger

    with closing(open_ledger(found.ledger)) as connection:
        running = left_running(found, connection)
    return str(running[0]["sprint_id"]) if running else ""


def _end(found: ProjectPaths, who: dict[str, Any]) -> str:
    """Ask the process that holds the project to save and stop; the sprint that it drove."""
    if not process_of(who).send_signal(signal.SIGTERM) and holder(found.engine_lock) is not None:
        raise PreconditionFailed(
            f"project {found.name} is held by process {who.get('pid', '?')} of another machine or"
            f" container ({who.get('host', 'unknown')}), which cannot be reached from here",
            hint="stop it there, with Ctrl-C or caloron stop",
        )
    give_up = time.monotonic() + _STOP_TIMEOUT_S
    while holder(found.engine_lock) is not None:
        if time.monotonic() > give_up:
            raise PreconditionFailed(
                f"process {who['pid']} has not stopped yet", hint="wait, then look again"
            )
        time.sleep(0.05)
    return str(who.get("sprint", ""))
