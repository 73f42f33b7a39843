"""Asks a person about a plan: run it, leave it held, or change it first."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import click

from caloron.domain.sprint import State
from caloron.engine.engine import Answer
from caloron.errors import CaloronError
from caloron.ledger.projects import Project

if TYPE_CHECKING:
    from caloron.cli.plan_edit import PlanEditor

#: What becomes of a plan that waits for approval: ask on the terminal, yes, not now, or wait for
#: somebody on the forge.
Approval = Literal["ask", "yes", "hold", "forge"]

_LOOK_S = 0.5


class Approver:
    """Answers for a plan that waits, as the command line or the person says."""

    def __init__(
        self,
        approval: Approval,
        project: Project,
        page: Callable[[State], str],
        *,
        edit_first: bool = False,
    ) -> None:
        self._approval = approval
        self._project = project
        self._page = page
        self._edit_first = edit_first
        self._edited = False

    @property
    def talks(self) -> bool:
        """Whether it uses the terminal."""
        return self._approval == "ask" or self._edit_first

    @property
    def holds(self) -> bool:
        """Whether the plan is only to be made, and kept."""
        return self._approval == "hold"

    def answer(self, state: State, meanwhile: Callable[[], bool] = lambda: False) -> Answer:
        if self._edited:
            # What was written is in the ledger now.
            self._editor(state).forget()
            self._edited = False
        if self._edit_first:
            self._edit_first = False
            if plan := self._changed(state):
                return plan
        if self._approval != "ask":
            return True if self._approval == "yes" else self._elsewhere(state)
        return self._ask(state, meanwhile)

    def _elsewhere(self, state: State) -> Answer:
        """Nobody is asked here: wait for the forge, or only until the plan stands there."""
        held = state.sprint.held_plan
        shown = held is not None and held.number is not None
        waits = state.sprint.plan_on_forge and not (self.holds and shown)
        return "wait" if waits else None

    def _ask(self, state: State, meanwhile: Callable[[], bool]) -> Answer:
        # At the prompt Ctrl-C means no, and must not wait for the engine.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            while True:
                click.echo(self._page(state))
                word = self._word(state, meanwhile)
                if word == "":
                    click.echo("\nIt was decided on the forge.")
                    return "wait"
                if word in ("y", "yes"):
                    return True
                if word not in ("e", "edit"):
                    return False
                try:
                    if plan := self._changed(state):
                        return plan
                except CaloronError as error:
                    click.echo(f"{error}\n({error.hint})", err=True)
        except (click.Abort, KeyboardInterrupt):
            return None
        finally:
            signal.signal(signal.SIGINT, before)

    def _word(self, state: State, meanwhile: Callable[[], bool]) -> str:
        """What the person says; empty: somebody on the forge was first."""
        count = len(state.tasks)
        these = "this task" if count == 1 else f"these {count} tasks"
        question = f"Run {these}? y: yes, N: not now, e: edit [y/N/e]"
        while True:
            if state.sprint.plan_on_forge:
                text = _prompt_until(question, meanwhile)
                if text is None:
                    return ""
            else:
                text = str(click.prompt(question, default="n", show_default=False))
            word = text.strip().lower() or "n"
            if word in ("y", "yes", "n", "no", "e", "edit"):
                return word

    def _changed(self, state: State) -> Answer:
        plan = self._editor(state).edit(tuple(task.plan for task in state.tasks.values()))
        self._edited = plan is not None
        return plan

    def _editor(self, state: State) -> PlanEditor:
        from caloron.cli.plan_edit import PlanEditor

        return PlanEditor(self._project, state.sprint.id)


def _prompt_until(question: str, decided: Callable[[], bool]) -> str | None:
    """A line from the terminal; None if it is decided before one comes."""
    click.echo(f"{question}: ", nl=False)
    while not select.select([sys.stdin], [], [], _LOOK_S)[0]:
        if decided():
            return None
    return _line_of(sys.stdin.fileno())


def _line_of(handle: int) -> str:
    """One line and no more: what Python reads ahead, `select` does not see any more."""
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(handle, 1)):
            break
        line += byte
    if not line:
        raise click.Abort
    return line.decode("utf-8", "replace")
