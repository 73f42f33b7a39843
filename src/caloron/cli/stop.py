"""`caloron stop`: end the running sprint for now."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from typing import Any

import click

from caloron.cli import output
from caloron.cli.options import dry_run_option, output_option, project_option
from caloron.errors import PreconditionFailed
from caloron.ledger.locate import ProjectPaths, find_project
from caloron.ledger.lock import holder
from caloron.store.lock import boot_id

_STOP_TIMEOUT_S = 60.0


@click.command()
@dry_run_option
@project_option
@output_option
def stop(dry_run: bool, project: str | None) -> int:
    """Save and stop the running sprint; agents end, their work is kept.

    \b
    Example:
      caloron stop
    """
    found = find_project(project)
    who = holder(found.engine_lock)
    if dry_run:
        named = who and (who.get("sprint") or f"process {who.get('pid')}")
        return output.dry_run("stop", [{"action": "stop", "target": named}] if named else [])
    name = _between_ticks(found) if who is None else ""
    if who is None and not name:
        data = {"project": found.name, "stopped": False}
        output.success("stop", data, f"Nothing is running in project {found.name}.")
        return 0
    if who is not None:
        name = _end(found, who) or _between_ticks(found)
    data = {"project": found.name, "stopped": True, "sprint_id": name}
    output.success("stop", data, f"Stopped {name}. Go on with: caloron resume {name}")
    return 0


def _between_ticks(found: ProjectPaths) -> str:
    """Stop the sprint that `caloron tick` drives; empty if there is none that goes on."""
    name = _visited(found) if found.ledger.exists() else ""
    if name:
        from caloron.cli.live import Lines
        from caloron.engine.session import held
        from caloron.engine.visit import halt
        from caloron.ledger.projects import load_project

        with held(load_project(found.name)) as session:
            halt(session.engine(name, Lines(to_stderr=True)))
    return name


def _visited(found: ProjectPaths) -> str:
    from caloron.ledger.ledger import read_state
    from caloron.store.database import open_read_only

    with closing(open_read_only(found.ledger)) as connection:
        names = connection.execute("SELECT key FROM kv WHERE key LIKE 'visited/%'").fetchall()
        for row in names:
            state = read_state(connection, str(row[0]).partition("/")[2])
            if state.sprint.phase != "ended" and not state.sprint.halted:
                return state.sprint.id
    return ""


def _end(found: ProjectPaths, who: dict[str, Any]) -> str:
    """Ask the process that holds the project to save and stop; the sprint that it drove."""
    if who.get("boot_id") != boot_id():
        raise PreconditionFailed(
            f"the sprint runs on another machine ({who.get('host')})", hint="stop it there"
        )
    os.kill(int(who["pid"]), signal.SIGTERM)
    give_up = time.monotonic() + _STOP_TIMEOUT_S
    while holder(found.engine_lock) is not None:
        if time.monotonic() > give_up:
            raise PreconditionFailed(
                f"process {who['pid']} has not stopped yet", hint="wait, then look again"
            )
        time.sleep(0.05)
    return str(who.get("sprint", ""))
