"""`caloron stop`: end the running sprint for now."""

from __future__ import annotations

import os
import signal
import time

import click

from caloron.cli import output
from caloron.cli.options import dry_run_option, output_option, project_option
from caloron.errors import PreconditionFailed
from caloron.ledger.locate import find_project
from caloron.ledger.lock import boot_id, holder

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
    if who is None:
        data = {"project": found.name, "stopped": False}
        output.success("stop", data, f"Nothing is running in project {found.name}.")
        return 0
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
    name = who.get("sprint", "")
    data = {"project": found.name, "stopped": True, "sprint_id": name}
    output.success("stop", data, f"Stopped {name}. Go on with: caloron resume {name}")
    return 0
