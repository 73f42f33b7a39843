"""`caloron sprint`, `resume`, `stop`: run a sprint, go on with one, end one for now."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from types import FrameType
from typing import Any

import click

from caloron.cli import output
from caloron.cli.alone import refuse_held
from caloron.cli.begin import Beginning, begin_options, prepare, would_begin
from caloron.cli.live import Approval, plan_text, watcher_for
from caloron.cli.options import (
    choice_options,
    dry_run_option,
    output_option,
    project_option,
    sprint_name,
)
from caloron.domain.sprint import State
from caloron.domain.status import Status
from caloron.domain.why import why, why_sprint
from caloron.engine.engine import Engine, Watcher
from caloron.engine.session import Choices, Session, held
from caloron.errors import NotFound, PreconditionFailed
from caloron.ledger.ledger import read_state
from caloron.ledger.locate import ProjectPaths, find_project
from caloron.ledger.lock import boot_id, holder
from caloron.ledger.projections import iso, kv_path
from caloron.ledger.projects import load_project
from caloron.store.database import open_read_only

TASKS_NOT_DONE = 10
STOPPED = 11
_STOP_TIMEOUT_S = 60.0


@click.command()
@click.argument("goal")
@begin_options
@click.option("--plan-only", is_flag=True, help="Stop at the plan; `caloron resume --yes` runs it.")
@click.option("--yes", "-y", is_flag=True, help="Run the plan without asking.")
@project_option
@output_option
def sprint(
    goal: str, plan_only: bool, yes: bool, dry_run: bool, project: str | None, **given: Any
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
      caloron sprint "Fix the typo in the README" --single --budget 1
    """
    begin = prepare(goal, project, given)
    if dry_run:
        return would_begin("sprint", begin, hold=plan_only)
    approval: Approval = "hold" if plan_only else "yes" if yes or not _can_ask() else "ask"
    return run_new(begin, "sprint", approval)


def run_new(begin: Beginning, command: str, approval: Approval) -> int:
    """Record a new sprint and drive it: to its end, or to its plan if that is to be held."""
    with held(begin.project) as session:
        session.told += [f"the plan: {warning}" for warning in begin.warnings]
        name = session.begin(
            begin.goal,
            begin.tasks,
            begin.choices,
            parallel=begin.parallel,
            ask=approval != "yes",
        )
        return _run(session, name, command, begin.choices, approval)


def _can_ask() -> bool:
    return not output.wants_json() and output.is_terminal() and sys.stdin.isatty()


@click.command()
@click.argument("sprint_id", metavar="[SPRINT]", required=False)
@click.option("--yes", "-y", is_flag=True, help="Run a plan that is held for approval.")
@choice_options
@dry_run_option
@project_option
@output_option
def resume(
    sprint_id: str | None, yes: bool, dry_run: bool, project: str | None, **choices: Any
) -> int:
    """Go on with the last sprint (or with SPRINT) after a stop, a crash or your `resolved`.

    A sprint that has nothing left to do gives the exit code it ended with.

    \b
    Examples:
      caloron resume
      caloron resume 3 --yes
    """
    found = load_project(project)
    if not found.ledger.exists():
        raise NotFound("this project has no sprint yet", hint='caloron sprint "<goal>"')
    wanted = sprint_name(found, sprint_id) if sprint_id else ""
    if dry_run:
        return _would_resume(found, wanted)
    approval: Approval = "yes" if yes else "ask" if _can_ask() else "hold"
    with held(found) as session:
        name = wanted or session.ledger.last_sprint()
        chosen = Choices(**choices)
        session.go_on(name, chosen)
        return _run(session, name, "resume", chosen, approval)


def _would_resume(found: ProjectPaths, wanted: str) -> int:
    refuse_held(found)
    with closing(open_read_only(found.ledger)) as connection:
        state = read_state(connection, wanted)
    actions = [{"action": "go on with sprint", "target": state.sprint.id}]
    actions += [
        {"action": "go on with task", "target": task.id}
        for task in state.tasks.values()
        if task.status not in (Status.DONE, Status.CANCELLED)
    ]
    return output.dry_run("resume", actions if len(actions) > 1 or not state.tasks else [])


def _run(session: Session, name: str, command: str, chosen: Choices, approval: Approval) -> int:
    """Drive the sprint with somebody looking on, and answer with what it came to."""
    began = time.monotonic()
    json = output.wants_json()
    with watcher_for(session.project, json=json, approval=approval) as watcher:
        engine = session.engine(name, watcher, debug=chosen.debug)
        for line in session.told:
            watcher.told(line)
        _say_conditions(session, engine, watcher)
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
    if state.sprint.phase == "approval" and approval == "hold" and command != "resume":
        return _answer_held(session, state, command, seconds)
    return _answer(session, state, command, seconds)


def _answer_held(session: Session, state: State, command: str, seconds: float) -> int:
    """The plan is all that was asked for, so this is a success."""
    run = f"caloron resume {state.sprint.id} --project {session.project.name} --yes"
    lines = (
        f"Sprint {state.sprint.id} has a plan of {len(state.tasks)} tasks, which waits for you:",
        plan_text(state),
        f"Run it: {run}",
    )
    data = report(session, state, seconds) | {"next": run}
    output.success(command, data, "\n".join(lines))
    return 0


def _say_conditions(session: Session, engine: Engine, watcher: Watcher) -> None:
    """What a user must know before agents begin: what confines them, and what they may cost."""
    sprint = session.ledger.state(engine.sprint).sprint
    if sprint.unsandboxed:
        watcher.told(
            "UNSANDBOXED: agents run as you, with all your files and your network within reach"
        )
    for warning in engine.workshop.warnings:
        watcher.told(f"conventions: {warning}")
    for name in session.project.config.pass_env:
        if name not in os.environ:
            watcher.told(f"pass_env names {name}, which is not set here: agents do not get it")
    purse = engine.workshop.purse
    if purse.metered:
        watcher.told(f"budget: ${purse.budget:.2f}, of which ${purse.spent:.2f} is spent")


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
        if state.sprint.halted.startswith("the budget"):
            hint += " --budget MORE"
        if state.sprint.phase == "approval":
            hint += " --yes"
        output.failure(command, "STOPPED", _stopped_line(state), hint=hint, data=data)
        return STOPPED
    if state.sprint.stopped:
        if state.sprint.stopped_by == "red main":
            raise PreconditionFailed(
                state.sprint.stopped,
                hint="put main right and `caloron resume`, or go on all the same with --allow-red",
            )
        raise PreconditionFailed(
            f"sprint {state.sprint.id} has no plan: {state.sprint.stopped}",
            hint=_how_to_plan(state.sprint.stopped),
        )
    if done < total:
        message = f"sprint {state.sprint.id} ended with {total - done} of {total} tasks not done"
        output.failure(command, "TASKS_NOT_DONE", message, hint="caloron why", data=data)
        return TASKS_NOT_DONE
    output.success(command, data, _merged_text(session, state, seconds))
    return 0


def _how_to_plan(why: str) -> str:
    if why.startswith("the plan is not valid"):
        return "say it in other words, give a plan with --plan FILE, or `caloron resume`"
    return "put that right, then `caloron resume`; `caloron logs po` shows what the planner wrote"


def _stopped_line(state: State) -> str:
    done = sum(1 for t in state.tasks.values() if t.status is Status.DONE)
    if state.sprint.halted:
        return f"sprint {state.sprint.id} waits: {state.sprint.halted}"
    if state.sprint.phase == "approval":
        return f"sprint {state.sprint.id} has a plan of {len(state.tasks)} tasks and waits for yes"
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
            "depends_on": list(task.plan.depends_on),
            "status": str(task.status),
            "why": why(state, task),
            "reason": task.reason,
            "issue_number": task.issue,
            "pr_number": task.pull,
            "review_rounds": len(task.reviewed),
            "cost_usd": round(task.spent.usd, 4),
            "tokens": task.spent.tokens_in + task.spent.tokens_out,
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
        "baseline": state.sprint.baseline,
        "verify": state.sprint.verify_line,
        "sandboxed": not state.sprint.unsandboxed,
        "budget_usd": state.sprint.budget_usd,
        "cost_usd": round(state.sprint.spent.usd, 4),
        "estimated_cost_usd": round(state.sprint.spent.estimated_usd, 4),
        "total_tasks": len(tasks),
        "completed_tasks": done,
        "tasks": tasks,
        "forge": str(session.project.forge_git),
        "state_file": str(kv_path(state.sprint.id)),
    }


def _merged_text(session: Session, state: State, seconds: float) -> str:
    total = len(state.tasks)
    repo = session.project.repository
    where = session.project.forge_git
    from_forge = shlex.quote(str(where))
    bring = f"git clone {from_forge}"
    if repo:
        bring = f"git -C {shlex.quote(str(repo))} pull {from_forge} main"
    return (
        f"Sprint {state.sprint.id}: all {total} tasks are done, in {seconds:.0f} s.\n"
        f"Bring the result to you: {bring}"
    )


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
