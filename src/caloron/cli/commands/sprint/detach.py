"""Sprints without a terminal: start one in a session of its own, and watch one that runs."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from caloron.cli import output
from caloron.cli.app import Answer, Failed, command, sprint_argument, sprint_name
from caloron.cli.commands.sprint.live import view_of
from caloron.cli.project_view import (
    is_running,
    orphan_line,
    orphaned_agents,
    project_flag,
    require_ledger,
)
from caloron.domain.model.effects import Moved
from caloron.domain.model.sprint import State
from caloron.domain.model.status import exit_code_for
from caloron.domain.reporting.explain import why_sprint
from caloron.engine.signals import Announcer, Listener
from caloron.ids import sprint_number
from caloron.ledger import reading, views
from caloron.ledger.ledger import read_state
from caloron.ledger.locate import ProjectPaths, find_project
from caloron.ledger.projects import load_project
from caloron.store.lock import holder

_POLL_S = 0.5
_START_S = 0.05


def start_detached(project: ProjectPaths, sprint: str, *options: str) -> tuple[int, Path]:
    """Resume a sprint in a session of its own; returns its process and its log.

    The process survives this terminal. It is the same as `caloron resume` after a crash, so
    nothing that runs is lost in between.
    """
    log = project.path / "logs" / f"{sprint}.log"
    log.parent.mkdir(exist_ok=True)
    words = ("resume", sprint, "--project", project.name, *options)
    with log.open("ab") as file:
        begin = file.tell()
        process = subprocess.Popen(
            (sys.executable, "-P", "-m", "caloron.cli", *words),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    while (holder(project.engine_lock) or {}).get("sprint") != sprint:
        if (code := process.poll()) is not None:
            _refuse_failed(log, begin, code, sprint)
            break
        time.sleep(_START_S)
    return process.pid, log


def _refuse_failed(log: Path, begin: int, code: int, sprint: str) -> None:
    """Pass on the error of a process that ended before it ran the sprint."""
    if code in (0, 10):
        # It was so quick that nobody saw it run.
        return
    with log.open("rb") as file:
        file.seek(begin)
        printed = file.read().decode("utf-8", "replace").strip()
    message, _, hint = printed.rpartition("error: ")[2].partition("\nhint: ")
    error = Failed("PRECONDITION_FAILED", f"sprint {sprint} did not start: {message}", hint=hint)
    error.exit_code = code
    raise error


def detached_answer(
    project: ProjectPaths, sprint: str, options: tuple[str, ...], data: dict[str, Any]
) -> Answer:
    """Start the sprint and say how to watch and stop it."""
    pid, log = start_detached(project, sprint, *options)
    flags = project_flag(project, project.name)
    lines = [
        f"Sprint {sprint} runs in the background, as process {pid}.",
        f"  Watch it:  caloron attach{flags}   (Ctrl-C leaves the view; the sprint continues)",
        f"  Stop it:   caloron stop{flags}",
        f"  Its log:   {log}",
    ]
    more = {"pid": pid, "log": str(log), "next": f"caloron attach{flags}"}
    return Answer(data | more, lines)


@command(project=True, examples=["caloron attach", "caloron attach 3"])
@sprint_argument
def attach(sprint: str | None, project: str | None) -> Answer | int:
    """Watch the running sprint (or SPRINT) until it ends or stops; Ctrl-C leaves the view only.

    The view reads the ledger, so any terminal can watch, and several at a time.

    Exit codes: those of the sprint: 0 every task is done; 10 it ended with tasks that need a
    person; 11 stopped and resumable. 0 also after Ctrl-C, because the sprint continues.
    """
    paths = find_project(project)
    with closing(require_ledger(paths)) as connection:
        running = str((holder(paths.engine_lock) or {}).get("sprint") or "")
        name = sprint_name(paths, sprint) if sprint else running
        state = read_state(connection, name)
    flags = project_flag(paths, project)
    with view_of(load_project(paths.name), state.sprint.id, json=output.wants_json()) as view:
        try:
            state, running_agents = _watch(paths, state.sprint.id, view)
        except KeyboardInterrupt:
            left = True
        else:
            left = False
    if left:
        return Answer(
            _data(paths, state, running=True),
            f"Sprint {state.sprint.id} continues. Watch it again: caloron attach{flags};"
            f" stop it: caloron stop{flags}",
        )
    return _end(paths, state, running_agents, flags)


def _watch(
    paths: ProjectPaths, name: str, view: Listener
) -> tuple[State, list[views.AgentProcess]]:
    """Show each change of the ledger until nothing drives the sprint any more."""
    announcer: Announcer | None = None
    before: State | None = None
    while True:
        # Ask first: an engine that ends meanwhile has committed its last state.
        is_driven = is_running(paths, name)
        with closing(require_ledger(paths)) as connection:
            state = read_state(connection, name)
            outage = reading.read_outage(connection, name)
            ticked = name in reading.ticked_sprints(connection)
            agents = orphaned_agents(paths, connection, name)
        moves = _moves(before, state)
        if moves:
            view.transitions(state, moves)
        view.state(state)
        announcer = announcer or Announcer(view.message, state, verification_off=False)
        announcer.announce(state, outage)
        is_over = state.sprint.phase == "ended" or state.sprint.availability.pause_reason
        if not is_driven and (is_over or not ticked):
            return state, agents
        before = state
        time.sleep(_POLL_S)


def _moves(before: State | None, after: State) -> tuple[Moved, ...]:
    """The tasks whose status changed between two looks at the ledger."""
    if before is None:
        return ()
    return tuple(
        Moved(task=name, old=before.tasks[name].status, new=task.status, reason=task.reason)
        for name, task in after.tasks.items()
        if name in before.tasks and before.tasks[name].status is not task.status
    )


def _data(paths: ProjectPaths, state: State, *, running: bool) -> dict[str, Any]:
    standing: views.Standing = {**views.ALONE, "running": running}
    sprint = views.sprint_state(state, time.time(), standing)
    return {**sprint, "project": paths.name, "running": running}


def _end(paths: ProjectPaths, state: State, agents: list[views.AgentProcess], flags: str) -> Answer:
    """Say how the sprint ended, or why it does not run; the exit code is that of the sprint."""
    name, data = state.sprint.id, _data(paths, state, running=False)
    done, total = data["completed_tasks"], data["total_tasks"]
    resume = f"caloron resume {name}{flags}"
    if state.sprint.phase == "ended":
        code = exit_code_for(stopped=state.sprint.planning.failure, done=done, total=total)
        text = f"Sprint {name} ended: {done} of {total} tasks done."
        if not code:
            return Answer(data, f"{text} Details: caloron report {sprint_number(name)}{flags}")
        error = Failed("TASKS_NOT_DONE", text, hint=f"caloron why{flags}; {resume}", data=data)
        error.exit_code = code
        raise error
    reason = why_sprint(state.sprint, time.time()) if not state.tasks else ""
    reason = state.sprint.availability.pause_reason or reason
    lines = [f"sprint {name} is not running{f': {reason}' if reason else ''}"]
    lines += [orphan_line(agent) for agent in agents]
    raise Failed("STOPPED", "\n".join(lines), hint=f"continue: {resume}", data=data)
