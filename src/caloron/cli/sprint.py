"""`caloron sprint` and `resume`: run a sprint, or go on with one, with somebody looking on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from types import FrameType
from typing import Any

import click

from caloron.cli import output
from caloron.cli.alone import refuse_held
from caloron.cli.approval import Approval, Approver
from caloron.cli.begin import Beginning, begin_options, prepare, set_up, would_begin
from caloron.cli.graph_note import plan_is_recorded, planning_cut_short
from caloron.cli.live import LiveTable, watcher_for
from caloron.cli.options import (
    choice_options,
    dry_run_option,
    named_sprint,
    output_option,
    project_option,
    sprint_name,
)
from caloron.cli.sprint_answer import STOPPED, answer, answer_begun, answer_held, plan_page
from caloron.domain.status import Status
from caloron.engine.answering import nothing_begun
from caloron.engine.engine import Engine, Watcher
from caloron.engine.session import Choices, Session, held
from caloron.errors import NotFound, PreconditionFailed, UsageError
from caloron.ledger.identity import open_ledger
from caloron.ledger.ledger import Ledger, read_state
from caloron.ledger.locate import ProjectPaths
from caloron.ledger.projects import load_project


@click.command()
@click.argument("goal")
@begin_options
@click.option("--plan-only", is_flag=True, help="Stop at the plan; `caloron resume --yes` runs it.")
@click.option("--begin-only", is_flag=True, help="Record it and leave; `caloron tick` drives it.")
@click.option("--yes", "-y", is_flag=True, help="Run the plan without asking.")
@click.option(
    "--approve", is_flag=True, help="Hold the plan until a person approves it, as a forge issue."
)
@project_option
@output_option
def sprint(
    goal: str,
    plan_only: bool,
    begin_only: bool,
    yes: bool,
    approve: bool,
    dry_run: bool,
    project: str | None,
    **given: Any,
) -> int:
    """Turn GOAL into tasks, have agents do them, and merge what is reviewed and verified.

    In a git repository without a project, one is set up first, with defaults that are told. On a
    terminal the plan is shown, and you can edit it. Ctrl-C saves and stops; `caloron resume` goes
    on where it was, also after a crash; `caloron take` brings the result into your branch.

    With --approve the plan waits as an issue on Gitea or GitHub: a comment `caloron:approve` runs
    it, an edit of its block changes it, closing it declines it. The local forge has no such issue.

    \b
    Exit codes: 0 every task is done; 10 it ended with tasks that need a person;
    11 stopped and resumable; 12 the graph that plans failed; 2 usage; 3 not found;
    5 held by another; 7 forge; 8 precondition.

    \b
    Examples:
      caloron sprint "Add a health endpoint with tests"
      caloron sprint "Release 2.0" --plan tasks.json --parallel 8 --yes
      caloron sprint "Add a rate limiter" --graph full_cycle
      caloron sprint "Fix the typo in the README" --single --budget 1
    """
    if yes and approve:
        raise UsageError("--yes and --approve exclude each other", hint="give one of them")
    if begin_only and plan_only:
        raise UsageError("--begin-only and --plan-only exclude each other", hint="give one of them")
    begin = prepare(goal, project, given, dry_run=dry_run)
    if dry_run:
        return would_begin("sprint", begin, hold=plan_only or approve)
    approval: Approval = "forge" if approve else "yes"
    if plan_only:
        approval = "hold"
    elif _can_ask() and not yes and not begin_only:
        approval = "ask"
    return run_new(begin, "sprint", approval, on_forge=approve, begin_only=begin_only)


def run_new(
    begin: Beginning,
    command: str,
    approval: Approval,
    *,
    on_forge: bool = False,
    begin_only: bool = False,
) -> int:
    """Record a new sprint and drive it: to its end, or to its plan if that is to be held."""
    about = set_up(begin)
    with held(begin.project) as session:
        session.told += [f"the plan: {warning}" for warning in begin.warnings]
        with nothing_begun():
            name = session.begin(
                begin.goal,
                begin.tasks,
                begin.choices,
                parallel=begin.parallel,
                ask=approval != "yes",
                plan_on_forge=on_forge,
            )
        if begin.planning is not None:
            plan_is_recorded(begin.project, begin.planning)
        if begin_only:
            return answer_begun(session, session.ledger.state(name), command, about)
        return _run(session, name, command, begin.choices, _approver(session, approval), about)


def _can_ask() -> bool:
    return not output.wants_json() and output.is_terminal() and sys.stdin.isatty()


def _approver(session: Session, approval: Approval, *, edit: bool = False) -> Approver:
    def page(state: Any) -> str:
        return plan_page(session, state)

    return Approver(approval, session.project, page, edit_first=edit)


@click.command()
@click.argument("sprint_id", metavar="[SPRINT]", required=False, callback=named_sprint)
@click.option("--yes", "-y", is_flag=True, help="Run a plan that is held for approval.")
@click.option("--edit", is_flag=True, help="First change a held plan in $VISUAL or $EDITOR.")
@choice_options
@dry_run_option
@project_option
@output_option
def resume(
    sprint_id: str | None,
    yes: bool,
    edit: bool,
    dry_run: bool,
    project: str | None,
    **choices: Any,
) -> int:
    """Go on with the last sprint (or with SPRINT) after a stop, a crash or your `resolved`.

    A sprint that has nothing left to do gives the exit code it ended with.

    \b
    Examples:
      caloron resume
      caloron resume 3 --yes
      caloron resume --edit
    """
    found = load_project(project)
    planning = planning_cut_short(found)
    if not found.ledger.exists():
        hint = planning or 'caloron sprint "<goal>"'
        raise NotFound("this project has no sprint yet", hint=hint)
    if planning:
        output.aside(planning)
    wanted = sprint_name(found, sprint_id) if sprint_id else ""
    if dry_run:
        return _would_resume(found, wanted)
    approval: Approval = "yes" if yes else "ask" if _can_ask() else "hold"
    with held(found) as session:
        name = wanted or _last_wanted(session.ledger)
        if edit:
            _refuse_late_edit(session, name)
        chosen = Choices(**choices)
        session.wait_for_forge(name, output.aside)
        session.go_on(name, chosen)
        if approval == "hold" and session.ledger.state(name).sprint.plan_on_forge:
            approval = "forge"
        return _run(session, name, "resume", chosen, _approver(session, approval, edit=edit))


def _last_wanted(ledger: Ledger) -> str:
    """The last sprint, unless it was thrown away and an earlier one is unfinished."""
    last = ledger.last_sprint()
    unfinished = ledger.unfinished()
    thrown_away = last not in unfinished and ledger.state(last).sprint.discarded
    return unfinished[-1] if thrown_away and unfinished else last


def _refuse_late_edit(session: Session, name: str) -> None:
    state = session.ledger.state(name)
    if state.sprint.phase in ("running", "ended"):
        raise PreconditionFailed(
            f"the plan of sprint {name} does not wait any more: its tasks were begun",
            hint="`caloron status` shows them; nothing was changed",
        )


def _would_resume(found: ProjectPaths, wanted: str) -> int:
    refuse_held(found)
    with closing(open_ledger(found.ledger)) as connection:
        state = read_state(connection, wanted)
    actions = [{"action": "go on with sprint", "target": state.sprint.id}]
    actions += [
        {"action": "go on with task", "target": task.id}
        for task in state.tasks.values()
        if task.status not in (Status.DONE, Status.CANCELLED)
    ]
    return output.dry_run("resume", actions if len(actions) > 1 or not state.tasks else [])


def _run(
    session: Session,
    name: str,
    command: str,
    chosen: Choices,
    approver: Approver,
    about: dict[str, Any] | None = None,
) -> int:
    """Drive the sprint with somebody looking on, and answer with what it came to."""
    with watcher_for(approver, json=output.wants_json()) as watcher:
        engine = session.engine(name, watcher, debug=chosen.debug)
        for line in session.told:
            watcher.told(line)
        _say_conditions(session, engine, watcher)
        asked: list[int] = []

        def stop_or_leave(number: int, _frame: FrameType | None) -> None:
            if asked:
                # Asked twice: leave at once. Everything needed to resume is recorded.
                os._exit(STOPPED)
            asked.append(number)
            watcher.told("stopping: saving what the agents have (again to leave at once)")
            if isinstance(watcher, LiveTable):
                watcher.stopping()
            engine.request_stop()

        restore = _handle_signals(stop_or_leave)
        try:
            state = engine.run()
        finally:
            restore()
    if state.sprint.phase == "approval" and approver.holds and command != "resume":
        return answer_held(session, state, command, about or {})
    return answer(session, state, command, about or {})


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
        before = f", of which ${purse.spent:.2f} was spent before" if purse.spent else ""
        watcher.told(f"budget: ${purse.budget:.2f}{before}")
    if not session.in_step:
        watcher.told(
            f"{session.project.config.repo} and the forge's main have diverged;"
            " agents work from the forge's main"
        )
    for other in session.ledger.unfinished():
        if other != engine.sprint:
            watcher.told(
                f"sprint {other} is unfinished; go on with it: caloron resume {other},"
                f" or throw it away: caloron discard {other}"
            )


def _handle_signals(handler: Callable[[int, FrameType | None], None]) -> Callable[[], None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, handler) for number in numbers]

    def restore() -> None:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)

    return restore
