"""Approves the plan of a sprint, as the options or the person at the terminal decide."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import click

from caloron.cli.format import counted
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.sprint import State
from caloron.engine.session import Session
from caloron.engine.signals import APPROVED, LATER, ON_FORGE, Approval
from caloron.errors import CaloronError

if TYPE_CHECKING:
    from caloron.cli.commands.sprint.plan import PlanEditor

#: How a plan is approved: ask on the terminal, approve it, keep it, or wait for the forge.
ApprovalMode = Literal["ask", "yes", "hold", "forge"]

_POLL_S = 0.5
_WORDS = ("yes", "no", "view", "edit", "select", "replan")
_QUESTION = "[y]es / [N]ot now / [v]iew / [e]dit / [s]elect / [r]eplan"


class Approver:
    """Approves a plan, as the options or the person at the terminal decide."""

    def __init__(
        self,
        approval: ApprovalMode,
        session: Session,
        *,
        edit_first: bool = False,
        detach: bool = False,
    ) -> None:
        """`detach`: an approved plan is kept too, because another process will run it."""
        self._approval = approval
        self._session = session
        self._edit_first = edit_first
        self._detach = detach
        self._edited = False
        #: The plan was approved, and waits for the process that runs it.
        self.approved = False

    @property
    def talks(self) -> bool:
        """True if it uses the terminal."""
        return self._approval == "ask" or self._edit_first

    @property
    def approves(self) -> bool:
        """True if no question about the plan is left."""
        return self.approved or self._approval == "yes"

    @property
    def holds(self) -> bool:
        """True if the plan is only made and kept."""
        return self._approval == "hold"

    def answer(self, state: State, decided: Callable[[], bool]) -> Approval:
        if self._edited:
            # The edited plan is in the ledger now.
            self._editor(state).forget()
            self._edited = False
        approval = None
        if self._edit_first:
            self._edit_first = False
            approval = self._edit(_plan(state), state)
        if approval is None and self._approval == "ask":
            approval = self._ask(state, decided)
        elif approval is None:
            approval = APPROVED if self._approval == "yes" else self._elsewhere(state)
        self.approved = approval is APPROVED
        return LATER if self.approved and self._detach else approval

    def _elsewhere(self, state: State) -> Approval:
        """Wait for the forge, or only until the plan is shown there."""
        shown = state.sprint.plan_issue is not None
        waits = state.sprint.settings.plan_on_forge and not (self.holds and shown)
        return ON_FORGE if waits else LATER

    def _ask(self, state: State, decided: Callable[[], bool]) -> Approval:
        from caloron.cli.commands.sprint.plan import plan_page

        # At the prompt Ctrl-C means no, and must not wait for the engine.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            click.echo(plan_page(self._session, state))
            approval = None
            while approval is None:
                approval = self._obey(self._word(state, decided), state)
            return approval
        except (click.Abort, KeyboardInterrupt):
            return LATER
        finally:
            signal.signal(signal.SIGINT, before)

    def _word(self, state: State, decided: Callable[[], bool]) -> str:
        """The decision of the person; empty: it was decided on the forge first."""
        count = len(state.tasks)
        these = "this task" if count == 1 else f"these {count} tasks"
        on_forge = state.sprint.settings.plan_on_forge
        while True:
            text = _prompt_until(
                f"Run {these}? {_QUESTION}", decided if on_forge else lambda: False
            )
            if text is None:
                return ""
            word = text.strip().lower() or "no"
            for known in _WORDS:
                if word in (known, known[0]):
                    return known

    def _obey(self, word: str, state: State) -> Approval | None:
        """What a word means for the plan; None: ask again."""
        plan = _plan(state)
        match word:
            case "":
                click.echo("\nIt was decided on the forge.")
                return ON_FORGE
            case "yes":
                return APPROVED
            case "view":
                from caloron.cli.commands.sprint.plan import plan_details

                click.echo(plan_details(plan))
            case "edit":
                try:
                    return self._edit(plan, state)
                except CaloronError as error:
                    click.echo(f"{error}\n({error.hint})", err=True)
            case "select":
                return _selected(plan)
            case "replan":
                remark = _line("What should be different? (empty: keep this plan) ")
                return Approval("again", remark=remark) if remark else None
            case _:
                return LATER
        return None

    def _edit(self, plan: tuple[PlannedTask, ...], state: State) -> Approval | None:
        edited = self._editor(state).edit(plan)
        self._edited = edited is not None
        return Approval("edited", edited) if edited else None

    def _editor(self, state: State) -> PlanEditor:
        from caloron.cli.commands.sprint.plan import PlanEditor

        return PlanEditor(self._session.project, state.sprint.id)


def _plan(state: State) -> tuple[PlannedTask, ...]:
    return tuple(task.plan for task in state.tasks.values())


def _selected(plan: tuple[PlannedTask, ...]) -> Approval | None:
    """The plan without the tasks that the person leaves out, and without those that need them."""
    words = _line("Leave out which tasks? (their ids; empty: none) ").replace(",", " ").split()
    chosen, known = set(words), {task.id for task in plan}
    if not chosen or (unknown := sorted(chosen - known)):
        if chosen:
            click.echo(f"There is no task {', '.join(unknown)}; the tasks: {', '.join(known)}")
        return None
    left = without(plan, chosen)
    dependents = [t.id for t in plan if t not in left and t.id not in chosen]
    if dependents:
        click.echo(f"Also left out, because they depend on these: {', '.join(dependents)}")
    if not left:
        click.echo("No task would be left; answer `n` to run none now.")
        return None
    click.echo(f"{counted(len(plan) - len(left), 'task')} left out.")
    return Approval("edited", left)


def without(plan: tuple[PlannedTask, ...], chosen: set[str]) -> tuple[PlannedTask, ...]:
    """The tasks of a plan that need none of the chosen ones."""
    out = set(chosen)
    while more := {t.id for t in plan if t.id not in out and out & set(t.depends_on)}:
        out |= more
    return tuple(task for task in plan if task.id not in out)


def _line(question: str) -> str:
    click.echo(question, nl=False)
    return " ".join(_line_of(sys.stdin.fileno()).split())


def _prompt_until(question: str, decided: Callable[[], bool]) -> str | None:
    """A line from the terminal; None if the plan is decided before one is typed."""
    click.echo(f"{question}: ", nl=False)
    while not select.select([sys.stdin], [], [], _POLL_S)[0]:
        if decided():
            return None
    return _line_of(sys.stdin.fileno())


def _line_of(handle: int) -> str:
    """Read exactly one line: `select` does not see what Python has buffered."""
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(handle, 1)):
            break
        line += byte
    if not line:
        raise click.Abort
    return line.decode("utf-8", "replace")
