"""`caloron sprint`, `resume`, `stop`: run a sprint, go on with one, end one for now."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import click

from caloron.cli import output
from caloron.cli.live import watcher_for
from caloron.cli.options import output_option, project_option
from caloron.domain.sprint import State
from caloron.domain.status import Status
from caloron.domain.why import why, why_sprint
from caloron.engine.session import Session, held, read_plan
from caloron.errors import NotFound, PreconditionFailed, UsageError
from caloron.ledger.locate import find_project, require_id
from caloron.ledger.lock import boot_id, holder
from caloron.ledger.projections import iso, kv_path
from caloron.ledger.projects import load_project

TASKS_NOT_DONE = 10
STOPPED = 11
MAX_GOAL = 64_000
_STOP_TIMEOUT_S = 60.0


@click.command()
@click.argument("goal")
@click.option("--plan", metavar="FILE", help="Take the tasks from this JSON file; ask no planner.")
@click.option("--parallel", "-n", type=click.IntRange(1, 256), help="How many agents at a time.")
@click.option("--yes", "-y", is_flag=True, help="Run the plan without asking.")
@project_option
@output_option
def sprint(
    goal: str, plan: str | None, parallel: int | None, yes: bool, project: str | None
) -> int:
    """Turn GOAL into tasks, have agents do them, and merge what is reviewed and verified.

    Ctrl-C saves and stops; `caloron resume` goes on where it was, also after a crash.

    \b
    Exit codes: 0 every task is done; 10 it ended with tasks that need a person;
    11 stopped and resumable; 2 usage; 3 not found; 5 held by another; 7 forge; 8 precondition.

    \b
    Examples:
      caloron sprint "Add a health endpoint with tests"
      caloron sprint "Release 2.0" --plan tasks.json --parallel 8 --yes
    """
    if not goal.strip() or len(goal) > MAX_GOAL or "\0" in goal:
        raise UsageError(f"a goal is 1 to {MAX_GOAL} characters of text")
    tasks = read_plan(Path(plan)) if plan else None
    found = load_project(project)
    ask = not yes and not output.wants_json() and output.is_terminal() and sys.stdin.isatty()
    with held(found) as session:
        slots = parallel or found.config.parallel
        name = session.begin(goal, tasks, parallel=slots, ask=ask)
        return _run(session, name, "sprint")


@click.command()
@click.argument("sprint_id", metavar="[SPRINT]", required=False)
@project_option
@output_option
def resume(sprint_id: str | None, project: str | None) -> int:
    """Go on with the last sprint (or with SPRINT) after a stop, a crash or your `resolved`.

    A sprint that has nothing left to do gives the exit code it ended with.

    \b
    Example:
      caloron resume
    """
    found = load_project(project)
    if not found.ledger.exists():
        raise NotFound("this project has no sprint yet", hint='caloron sprint "<goal>"')
    with held(found) as session:
        name = require_id(sprint_id, "sprint") if sprint_id else session.ledger.last_sprint()
        session.ask_again(name)
        return _run(session, name, "resume")


def _run(session: Session, name: str, command: str) -> int:
    """Drive the sprint with somebody looking on, and answer with what it came to."""
    began = time.monotonic()
    with watcher_for(session.project, json=output.wants_json()) as watcher:
        engine = session.engine(name, watcher)
        if not session.in_step:
            watcher.told(
                f"{session.project.config.repo} and the forge's main have diverged;"
                " agents work from the forge's main"
            )
        for other in session.ledger.unfinished():
            if other != name:
                watcher.told(f"sprint {other} is unfinished; go on with it: caloron resume {other}")
        asked: list[int] = []

        def stop_or_leave(number: int, _frame: FrameType | None) -> None:
            if asked:
                # Asked twice: leave at once. Everything needed to resume is recorded.
                os._exit(STOPPED)
            asked.append(number)
            watcher.told("stopping: saving what the agents have (again to leave at once)")
            engine.request_stop()

        restore = _handle_signals(stop_or_leave)
        try:
            state = engine.run()
        finally:
            restore()
    seconds = time.monotonic() - began
    if state.sprint.ended_at is not None:
        seconds = state.sprint.ended_at - state.sprint.created_at
    return _answer(session, state, command, seconds)


def _handle_signals(handler: Callable[[int, FrameType | None], None]) -> Callable[[], None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, handler) for number in numbers]

    def restore() -> None:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)

    return restore


def _answer(session: Session, state: State, command: str, seconds: float) -> int:
    data = report(session, state, seconds)
    done, total = data["completed_tasks"], data["total_tasks"]
    if state.sprint.phase != "ended":
        hint = f"caloron resume {state.sprint.id} --project {session.project.name}"
        output.failure(command, "STOPPED", _stopped_line(state), hint=hint, data=data)
        return STOPPED
    if state.sprint.stopped:
        raise PreconditionFailed(
            f"sprint {state.sprint.id} has no plan: {state.sprint.stopped}",
            hint="say it in other words, give a plan with --plan FILE, or `caloron resume`",
        )
    if done < total:
        message = f"sprint {state.sprint.id} ended with {total - done} of {total} tasks not done"
        output.failure(command, "TASKS_NOT_DONE", message, hint="caloron why", data=data)
        return TASKS_NOT_DONE
    output.success(command, data, _merged_text(session, state, seconds))
    return 0


def _stopped_line(state: State) -> str:
    done = sum(1 for t in state.tasks.values() if t.status is Status.DONE)
    if not state.tasks:
        return f"sprint {state.sprint.id} was stopped: {why_sprint(state.sprint)}"
    return f"sprint {state.sprint.id} was stopped with {done} of {len(state.tasks)} tasks done"


def report(session: Session, state: State, seconds: float) -> dict[str, Any]:
    """The sprint as data: what every output of it is made from."""
    tasks = [
        {
            "id": task.id,
            "title": task.plan.title,
            "kind": task.plan.kind,
            "status": str(task.status),
            "why": why(state, task),
            "reason": task.reason,
            "issue_number": task.issue,
            "pr_number": task.pull,
            "review_rounds": len(task.reviewed),
            "started_at": iso(task.started_at),
            "completed_at": iso(task.completed_at),
        }
        for task in state.tasks.values()
    ]
    done = sum(1 for t in state.tasks.values() if t.status is Status.DONE)
    return {
        "sprint_id": state.sprint.id,
        "number": state.sprint.number,
        "project": session.project.name,
        "goal": state.sprint.goal,
        "phase": state.sprint.phase,
        "duration_s": round(seconds, 1),
        "total_tasks": len(tasks),
        "completed_tasks": done,
        "tasks": tasks,
        "forge": str(session.project.forge_git),
        "state_file": str(kv_path(state.sprint.id)),
    }


def _merged_text(session: Session, state: State, seconds: float) -> str:
    total = len(state.tasks)
    repo = session.project.config.repo
    where = session.project.forge_git
    bring = f"git -C {repo} pull {where} main" if repo else f"git clone {where}"
    return (
        f"Sprint {state.sprint.id}: all {total} tasks are done, in {seconds:.0f} s.\n"
        f"Bring the result to you: {bring}"
    )


@click.command()
@project_option
@output_option
def stop(project: str | None) -> int:
    """Save and stop the running sprint; agents end, their work is kept.

    \b
    Example:
      caloron stop
    """
    found = find_project(project)
    who = holder(found.engine_lock)
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
