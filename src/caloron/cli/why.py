"""`caloron why`: one line for every task that is not done."""

from __future__ import annotations

import click

from caloron.cli.options import output_option, project_option
from caloron.cli.output import printable, success
from caloron.cli.status import require_ledger
from caloron.domain.why import why as reason_of
from caloron.domain.why import why_sprint
from caloron.errors import NotFound
from caloron.ledger.glance import SeenTask, glance
from caloron.ledger.locate import find_project
from caloron.ledger.lock import holder
from caloron.ledger.outages import read_outage


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
    finally:
        connection.close()
    if task is not None and task not in state.tasks:
        known = ", ".join(state.tasks) or "none yet"
        raise NotFound(f"sprint {state.sprint.id} has no task {task!r}", hint=f"tasks: {known}")
    stopped = state.sprint.phase != "ended" and who is None

    def line(unfinished: SeenTask) -> str:
        reason = reason_of(state, unfinished)
        return f"stopped while {reason}" if stopped and unfinished.work else reason

    tasks = [
        {"id": t.id, "status": str(t.status), "why": line(t)}
        for t in state.tasks.values()
        if t.id == task or (task is None and t.status != "Done")
    ]
    data = {
        "sprint_id": state.sprint.id,
        "stopped": stopped,
        "why": why_sprint(state.sprint),
        "outage": outage,
        "tasks": tasks,
    }
    told = state.sprint.halted if state.tasks else why_sprint(state.sprint)
    lines = [f"The sprint waits: {printable(reason)}" for reason in (told, outage) if reason]
    lines += [f"{t['id']}: {t['status']}: {printable(t['why']) or 'it is done'}" for t in tasks]
    if stopped:
        lines.append(f"The sprint is stopped; `caloron resume {state.sprint.id}` goes on with it.")
    success("why", data, "\n".join(lines) or "Every task is done.")
