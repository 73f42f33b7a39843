"""`caloron why`: one line for every task that is not done."""

from __future__ import annotations

import time

import click

from caloron.cli.left_running import left_running
from caloron.cli.left_running import told as told_agent
from caloron.cli.options import output_option, project_option
from caloron.cli.output import printable, success
from caloron.cli.screen import fitted
from caloron.cli.status import require_ledger
from caloron.domain.why import why as reason_of
from caloron.domain.why import why_sprint
from caloron.errors import NotFound
from caloron.failures import log_lines
from caloron.ledger.glance import SeenTask, glance
from caloron.ledger.locate import find_project
from caloron.ledger.outages import read_outage
from caloron.store.lock import holder


@click.command()
@click.argument("task", required=False)
@project_option
@output_option
def why(task: str | None, project: str | None) -> None:
    """Say what each unfinished task of the last sprint (or TASK alone) waits for.

    \b
    Examples:
      caloron why
      caloron why fix-login
    """
    found = find_project(project)
    connection = require_ledger(found)
    try:
        who = holder(found.engine_lock)
        state = glance(connection, (who or {}).get("sprint", ""))
        outage = str(read_outage(connection, state.sprint.id) or "")
        running = left_running(found, connection, state.sprint.id)
    finally:
        connection.close()
    if task is not None and task not in state.tasks:
        known = ", ".join(state.tasks) or "none yet"
        raise NotFound(f"sprint {state.sprint.id} has no task {task!r}", hint=f"tasks: {known}")
    stopped = state.sprint.phase != "ended" and who is None
    if stopped and not state.sprint.halted:
        # An interrupted attempt is queued again, but that is not what the agent was doing.
        state.queued -= state.begun
    now = time.time()

    def line(unfinished: SeenTask) -> str:
        reason = reason_of(state, unfinished, now)
        if any(agent["task"] == unfinished.id for agent in running):
            return reason
        return f"stopped while {reason}" if stopped and unfinished.work else reason

    tasks = [
        {"id": t.id, "status": str(t.status), "why": line(t)}
        for t in state.tasks.values()
        if t.id == task or (task is None and t.status != "Done")
    ]
    data = {
        "sprint_id": state.sprint.id,
        "number": state.sprint.number,
        "stopped": stopped,
        "why": why_sprint(state.sprint, now),
        "outage": outage,
        "tasks": tasks,
        "running": running,
    }
    told = state.sprint.halted if state.tasks else why_sprint(state.sprint, now)
    lines = [f"The sprint waits: {printable(reason)}" for reason in (told, outage) if reason]
    if log := state.sprint.stopped_log:
        lines += [f"  | {printable(line)}" for line in log_lines(log)]
        lines += [f"  {log}", f"Fix main and run: caloron resume {state.sprint.id}",
                  f"Or continue anyway: caloron resume {state.sprint.id} --allow-red"]  # fmt: skip
    lines += [f"{t['id']}: {t['status']}: {printable(t['why']) or 'it is done'}" for t in tasks]
    lines += [told_agent(agent) for agent in running]
    if stopped and not running:
        lines.append(f"The sprint is stopped; `caloron resume {state.sprint.id}` goes on with it.")
    success("why", data, fitted("\n".join(lines)) or "Every task is done.")
