"""Asks a person about a plan: run it, leave it held, or change it first."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import click

from caloron.domain.sprint import State
from caloron.engine.engine import Answer
from caloron.errors import CaloronError
from caloron.ledger.projects import Project

if TYPE_CHECKING:
    from caloron.cli.plan_edit import PlanEditor

#: What becomes of a plan that waits for approval: ask on the terminal, yes, or not now.
Approval = Literal["ask", "yes", "hold"]


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

    def answer(self, state: State) -> Answer:
        if self._edited:
            # What was written is in the ledger now.
            self._editor(state).forget()
            self._edited = False
        if self._edit_first:
            self._edit_first = False
            if plan := self._changed(state):
                return plan
        if self._approval != "ask":
            return True if self._approval == "yes" else None
        return self._ask(state)

    def _ask(self, state: State) -> Answer:
        # At the prompt Ctrl-C means no, and must not wait for the engine.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            while True:
                click.echo(self._page(state))
                word = self._word(len(state.tasks))
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

    def _word(self, count: int) -> str:
        these = "this task" if count == 1 else f"these {count} tasks"
        while True:
            text = click.prompt(
                f"Run {these}? y: yes, N: not now, e: edit [y/N/e]",
                default="n",
                show_default=False,
            )
            word = str(text).strip().lower()
            if word in ("y", "yes", "n", "no", "e", "edit"):
                return word

    def _changed(self, state: State) -> Answer:
        plan = self._editor(state).edit(tuple(task.plan for task in state.tasks.values()))
        self._edited = plan is not None
        return plan

    def _editor(self, state: State) -> PlanEditor:
        from caloron.cli.plan_edit import PlanEditor

        return PlanEditor(self._project, state.sprint.id)
