"""`caloron sprint` and `resume`: run a new sprint, or continue one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from types import FrameType
from typing import Any

import click

from caloron.cli import output
from caloron.cli.app import (
    Answer,
    DryRun,
    choice_options,
    command,
    exclude_each_other,
    named_sprint,
    planned,
    sprint_name,
)
from caloron.cli.commands.sprint.approval import ApprovalMode, Approver
from caloron.cli.commands.sprint.live import LiveTable, view_of
from caloron.cli.commands.sprint.request import (
    SprintOptions,
    SprintRequest,
    ensure_project,
    interrupted_planning_hint,
    limit_options,
    plan_dry_run,
    plan_is_recorded,
    resolve_request,
    sprint_options,
    with_limits,
)
from caloron.cli.commands.sprint.result import (
    STOPPED,
    answer_begun,
    answer_held,
    report,
    sprint_answer,
)
from caloron.cli.project_view import ensure_unlocked
from caloron.domain.model.sprint import State
from caloron.domain.model.status import Status
from caloron.engine.loop import Engine
from caloron.engine.session import Choices, Session, exclusive, refuse_if_unreachable
from caloron.engine.signals import Listener
from caloron.errors import NotFound, PreconditionFailed
from caloron.ledger.ledger import Ledger, read_state
from caloron.ledger.locate import ProjectPaths
from caloron.ledger.projects import load_project
from caloron.ledger.reading import open_ledger

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

detach_option = click.option(
    "--detach",
    "-d",
    is_flag=True,
    help="Run in the background once the plan is approved; `caloron attach` watches it.",
)


@command(
    project=True,
    dry_run=True,
    examples=[
        'caloron sprint "Add a health endpoint with tests"',
        'caloron sprint "Release 2.0" --plan tasks.json --parallel 8 --yes',
        'caloron sprint "Add a rate limiter" --graph full_cycle',
        'caloron sprint "Fix the typo in the README" --single --budget 1',
        "caloron sprint --from-issue 12 --detach",
        "caloron sprint --file goal.md",
    ],
)
@click.argument("goal", required=False)
@sprint_options
@detach_option
@click.option("--plan-only", is_flag=True, help="Stop at the plan; `caloron resume --yes` runs it.")
@click.option(
    "--begin-only", is_flag=True, help="Only record the sprint; `caloron tick` drives it."
)
@click.option("--yes", "-y", is_flag=True, help="Run the plan without asking.")
@click.option(
    "--approve", is_flag=True, help="Hold the plan until a person approves it, as a forge issue."
)
def sprint(
    goal: str | None,
    detach: bool,
    plan_only: bool,
    begin_only: bool,
    yes: bool,
    approve: bool,
    dry_run: bool,
    project: str | None,
    **chosen: Any,
) -> Answer | DryRun | int:
    """Turn GOAL into tasks, let agents do them, and merge what is reviewed and verified.

    In a git repository without a project, one is set up first, and its defaults are printed. On a
    terminal the plan is shown, and you can edit it. Ctrl-C saves and stops; `caloron resume`
    continues, also after a crash; `caloron apply` brings the result into your branch.

    The goal may also be a file (--file), standard input (GOAL is `-`), or issues of the project's
    forge (--from-issue), which get the result as a comment.

    With --approve the plan waits as an issue on Gitea or GitHub: a comment `caloron:approve` runs
    it, an edit of its block changes it, closing it declines it. The local forge has no such issue.

    Exit codes: 0 every task is done; 10 it ended with tasks that need a person;
    11 stopped and resumable; 12 the graph that plans failed; 2 usage; 3 not found;
    5 in use by another process; 7 forge; 8 precondition.
    """
    exclude_each_other(yes=yes, approve=approve)
    exclude_each_other(begin_only=begin_only, plan_only=plan_only, detach=detach)
    request = resolve_request(goal, project, SprintOptions(**chosen), dry_run=dry_run)
    if dry_run:
        return plan_dry_run(request, hold=plan_only or approve)
    approval: ApprovalMode = "forge" if approve else "yes"
    if plan_only:
        approval = "hold"
    elif _can_ask() and not yes and not begin_only:
        approval = "ask"
    return _run_new(request, approval, on_forge=approve, begin_only=begin_only, detach=detach)


def _run_new(
    request: SprintRequest,
    approval: ApprovalMode,
    *,
    on_forge: bool = False,
    begin_only: bool = False,
    detach: bool = False,
) -> Answer | int:
    """Record a new sprint and drive it: to its end, or to its plan if that is to be held."""
    extra = ensure_project(request, ask=approval == "ask")
    with exclusive(request.project) as session:
        session.messages += [f"the plan: {warning}" for warning in request.warnings]
        with refuse_if_unreachable():
            name = session.begin(
                request.goal,
                request.tasks,
                request.choices,
                parallel=request.parallel,
                ask=approval != "yes",
                plan_on_forge=on_forge,
                source=request.source,
            )
        if request.planning is not None:
            plan_is_recorded(request.project, request.planning)
        if begin_only:
            return answer_begun(session, session.ledger.state(name), extra)
        run = Run(session, name, request.choices, Approver(approval, session, detach=detach))
        answer = run.to_answer(extra, detach=detach, plan_only=approval == "hold")
    return answer if answer is not None else run.detached()


def _can_ask() -> bool:
    return not output.wants_json() and output.is_terminal() and sys.stdin.isatty()


@command(
    project=True,
    dry_run=True,
    examples=["caloron resume", "caloron resume 3 --yes --detach", "caloron resume --edit"],
)
@click.argument("sprint_id", metavar="[SPRINT]", required=False, callback=named_sprint)
@click.option("--yes", "-y", is_flag=True, help="Run a plan that waits for approval.")
@click.option("--edit", is_flag=True, help="First edit the waiting plan in $VISUAL or $EDITOR.")
@detach_option
@limit_options
@choice_options
def resume(
    sprint_id: str | None,
    yes: bool,
    edit: bool,
    detach: bool,
    timeout_s: float | None,
    planner_timeout_s: float | str | None,
    dry_run: bool,
    project: str | None,
    **chosen: Any,
) -> Answer | DryRun | int:
    """Continue the last sprint (or SPRINT) after a stop, a crash or your `resolved`.

    A sprint that has nothing left to do returns the exit code it ended with.
    """
    loaded = with_limits(load_project(project), timeout_s, planner_timeout_s)
    planning = interrupted_planning_hint(loaded)
    if not loaded.ledger.exists():
        hint = planning or 'caloron sprint "<goal>"'
        raise NotFound("this project has no sprint yet", hint=hint)
    if planning:
        output.note(planning)
    wanted = sprint_name(loaded, sprint_id) if sprint_id else ""
    if dry_run:
        return _resume_dry_run(loaded, wanted)
    approval: ApprovalMode = "yes" if yes else "ask" if _can_ask() else "hold"
    with exclusive(loaded) as session:
        name = wanted or _sprint_to_resume(session.ledger)
        if edit and session.ledger.state(name).sprint.phase in ("running", "ended"):
            raise PreconditionFailed(
                f"the plan of sprint {name} cannot be edited any more: its tasks were started",
                hint="`caloron status` shows them; nothing was changed",
            )
        choices = Choices(**chosen)
        session.wait_for_forge(name, output.note)
        session.go_on(name, choices)
        if approval == "hold" and session.ledger.state(name).sprint.settings.plan_on_forge:
            approval = "forge"
        approver = Approver(approval, session, edit_first=edit, detach=detach)
        run = Run(session, name, choices, approver)
        answer = run.to_answer({}, detach=detach)
    return answer if answer is not None else run.detached()


def _sprint_to_resume(ledger: Ledger) -> str:
    """The last sprint, unless it was discarded and an earlier one is unfinished."""
    last = ledger.last_sprint()
    unfinished = ledger.unfinished()
    discarded = last not in unfinished and ledger.state(last).sprint.discard.by
    return unfinished[-1] if discarded and unfinished else last


def _resume_dry_run(project: ProjectPaths, wanted: str) -> DryRun:
    ensure_unlocked(project)
    with closing(open_ledger(project.ledger)) as connection:
        state = read_state(connection, wanted)
    tasks = [
        planned("go on with task", task.id)
        for task in state.tasks.values()
        if task.status not in (Status.DONE, Status.CANCELLED)
    ]
    if state.tasks and not tasks:
        return DryRun()
    return DryRun(planned("go on with sprint", state.sprint.id), *tasks)


class Run:
    """One run of a sprint in this process, while a view shows its progress."""

    def __init__(self, session: Session, name: str, choices: Choices, approver: Approver) -> None:
        self._session = session
        self._name = name
        self._choices = choices
        self._approver = approver
        self._data: dict[str, Any] = {}
        #: The terminal was closed, and another process continues the sprint.
        self._hung_up = False

    def to_answer(
        self, extra: dict[str, Any], *, detach: bool, plan_only: bool = False
    ) -> Answer | int | None:
        """Drive the sprint and return its answer; None: another process is to drive it on."""
        session, approver = self._session, self._approver
        waits = session.ledger.state(self._name).sprint.phase in ("planning", "approval")
        if detach and not (waits and approver.talks):
            self._data = report(session, session.ledger.state(self._name)) | extra
            return None
        state = self._drive()
        self._data = report(session, state) | extra
        if self._hung_up or (detach and approver.approved):
            return None
        if plan_only and state.sprint.phase == "approval":
            return answer_held(session, state, extra)
        return sprint_answer(session, state, extra)

    def detached(self) -> Answer:
        """Let a process without a terminal drive the sprint on, after this one unlocked it."""
        # Most sprints do not need it.
        from caloron.cli.commands.sprint.detach import detached_answer

        project, config = self._session.project, self._session.project.config
        options = [
            "--timeout",
            str(config.timeout_s),
            "--planner-timeout",
            str(config.planner_timeout_s),
        ]
        # Only a person's yes is passed on: a plan that nobody saw waits.
        options += ["--yes"] if self._approver.approves else []
        options += ["--debug"] if self._choices.debug else []
        return detached_answer(project, self._name, tuple(options), self._data)

    def _drive(self) -> State:
        session, name = self._session, self._name
        with view_of(
            session.project, name, json=output.wants_json(), approver=self._approver
        ) as view:
            engine = session.engine(name, view, debug=self._choices.debug)
            for line in session.messages:
                view.message(line)
            _show_conditions(session, engine, view)
            before = {number: signal.getsignal(number) for number in _SIGNALS}
            self._handle_signals(engine, view)
            try:
                return engine.run()
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _handle_signals(self, engine: Engine, view: Listener) -> None:
        signals: list[int] = []
        # A closed terminal no longer says that it is one.
        terminal = [handle for handle in (0, 1, 2) if os.isatty(handle)]

        def stop_or_exit(number: int, _frame: FrameType | None) -> None:
            if number == signal.SIGHUP and signals:
                # The kernel and the shell both report a closed terminal.
                return
            if signals:
                # The second signal: exit at once. Everything needed to resume is recorded.
                os._exit(STOPPED)
            signals.append(number)
            if number == signal.SIGHUP:
                _leave_terminal(terminal)
                self._hung_up = self._session.project.config.on_hangup == "continue"
            again = " (press Ctrl-C again to quit now)" if number == signal.SIGINT else ""
            view.message(f"stopping: saving agents' work{again}")
            if isinstance(view, LiveTable):
                view.stopping()
            engine.request_stop(keep_agents=self._hung_up)

        for number in _SIGNALS:
            # `nohup` has SIGHUP ignored, and that must stay so.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, stop_or_exit)


def _leave_terminal(handles: Sequence[int]) -> None:
    """Stop writing to a terminal that was closed: each write would fail."""
    null = os.open(os.devnull, os.O_RDWR)
    for handle in handles:
        os.dup2(null, handle)
    os.close(null)


def _show_conditions(session: Session, engine: Engine, listener: Listener) -> None:
    """Show what a user must know before agents start: their sandbox, and what they may cost."""
    sprint = session.ledger.state(engine.sprint).sprint
    if sprint.settings.unsandboxed:
        listener.message(
            "WARNING: no sandbox; agents can read and change all your files and use your network"
        )
    for warning in engine.runtime.context.warnings:
        listener.message(f"conventions: {warning}")
    for name in session.project.config.pass_env:
        if name not in os.environ:
            listener.message(f"pass_env names {name}, which is not set here: agents do not get it")
    budget = engine.runtime.budget
    if budget.is_metered:
        before = f", of which ${budget.spent:.2f} was spent before" if budget.spent else ""
        listener.message(f"budget: ${budget.budget:.2f}{before}")
    if not session.in_step:
        listener.message(
            f"{session.project.config.repo} and the forge's main have diverged;"
            " agents work from the forge's main"
        )
    for other in session.ledger.unfinished():
        if other != engine.sprint:
            listener.message(
                f"sprint {other} is unfinished; continue it: caloron resume {other},"
                f" or discard it: caloron discard {other}"
            )
