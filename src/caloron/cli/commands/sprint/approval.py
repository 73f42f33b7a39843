"""Approves the plan of a sprint, as the options or the person at the terminal decide."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import click

from caloron.domain.model.sprint import State
from caloron.engine.session import Session
from caloron.engine.signals import APPROVED, LATER, ON_FORGE, Approval
from caloron.errors import CaloronError

if TYPE_CHECKING:
    from caloron.cli.commands.sprint.plan import PlanEditor

#: How a plan is approved: ask on the terminal, approve it, keep it, or wait for the forge.
ApprovalMode = Literal["ask", "yes", "hold", "forge"]

_POLL_S = 0.5


class Approver:
    """Approves a plan, as the options or the person at the terminal decide."""

    def __init__(
        self,
        approval: ApprovalMode,
        session: Session,
        *,
        edit_first: bool = False,
    ) -> None:
        self._approval = approval
        self._session = session
        self._edit_first = edit_first
        self._edited = False

    @property
    def talks(self) -> bool:
        """True if it uses the terminal."""
        return self._approval == "ask" or self._edit_first

    @property
    def holds(self) -> bool:
        """True if the plan is only made and kept."""
        return self._approval == "hold"

    def answer(self, state: State, decided: Callable[[], bool]) -> Approval:
        if self._edited:
            # The edited plan is in the ledger now.
            self._editor(state).forget()
            self._edited = False
        if self._edit_first:
            self._edit_first = False
            if plan := self._changed(state):
                return plan
        if self._approval != "ask":
            return APPROVED if self._approval == "yes" else self._elsewhere(state)
        return self._ask(state, decided)

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
            while True:
                click.echo(plan_page(self._session, state))
                word = self._word(state, decided)
                if word == "":
                    click.echo("\nIt was decided on the forge.")
                    return ON_FORGE
                if word in ("y", "yes"):
                    return APPROVED
                if word not in ("e", "edit"):
                    return LATER
                try:
                    if plan := self._changed(state):
                        return plan
                except CaloronError as error:
                    click.echo(f"{error}\n({error.hint})", err=True)
        except (click.Abort, KeyboardInterrupt):
            return LATER
        finally:
            signal.signal(signal.SIGINT, before)

    def _word(self, state: State, decided: Callable[[], bool]) -> str:
        """The decision of the person; empty: it was decided on the forge first."""
        count = len(state.tasks)
        these = "this task" if count == 1 else f"these {count} tasks"
        question = f"Run {these}? y: yes, N: not now, e: edit [y/N/e]"
        on_forge = state.sprint.settings.plan_on_forge
        while True:
            text = _prompt_until(question, decided if on_forge else lambda: False)
            if text is None:
                return ""
            word = text.strip().lower() or "n"
            if word in ("y", "yes", "n", "no", "e", "edit"):
                return word

    def _changed(self, state: State) -> Approval | None:
        plan = self._editor(state).edit(tuple(task.plan for task in state.tasks.values()))
        self._edited = plan is not None
        return Approval("edited", plan) if plan else None

    def _editor(self, state: State) -> PlanEditor:
        from caloron.cli.commands.sprint.plan import PlanEditor

        return PlanEditor(self._session.project, state.sprint.id)


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
