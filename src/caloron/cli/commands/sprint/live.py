"""The progress of a running sprint: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from caloron.cli.commands.sprint.approval import Approver
from caloron.cli.format import counted, one_line, printable
from caloron.cli.output import is_terminal
from caloron.domain.model.effects import Moved
from caloron.domain.model.sprint import State
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task
from caloron.domain.reporting.explain import why, why_sprint
from caloron.engine.signals import LATER, Approval, Listener

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

#: A table narrower than this has no column for the role.
_WIDE_ENOUGH_FOR_ROLES = 80
_MORE = "… {} more"
_COLOURS = {
    Status.DONE: "green",
    Status.IN_PROGRESS: "cyan",
    Status.IN_REVIEW: "blue",
    Status.ESCALATED: "bold red",
    Status.BLOCKED: "yellow",
    Status.CANCELLED: "dim",
}


@contextmanager
def listener_for(approver: Approver, *, json: bool) -> Iterator[Listener]:
    """The listener for this output; with JSON, progress goes to standard error."""
    if json or not is_terminal():
        yield Lines(approver, to_stderr=json)
        return
    table = LiveTable(approver)
    with _no_caret_echo(), table.live:
        yield table


@contextmanager
def _no_caret_echo() -> Iterator[None]:
    """Keep the terminal from printing `^C`, which moves the cursor and spoils the table."""
    import termios

    try:
        before = termios.tcgetattr(0)
    except (termios.error, OSError):
        # Standard input is not a terminal.
        yield
        return
    quiet = [*before[:3], before[3] & ~termios.ECHOCTL, *before[4:]]
    termios.tcsetattr(0, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


class Lines:
    """One line per change, for logs and pipes."""

    def __init__(
        self, approver: Approver | None = None, *, to_stderr: bool, phase: str = ""
    ) -> None:
        self._stderr = to_stderr
        self._approver = approver
        #: The phase that was printed last.
        self._phase = phase

    def message(self, line: str) -> None:
        click.echo(f"{time.strftime('%H:%M:%S')}  {printable(line)}", err=self._stderr)

    def transitions(self, state: State, moves: tuple[Moved, ...]) -> None:
        for move in moves:
            reason = f"  ({move.reason})" if move.reason else ""
            # A move without a change of status is shown by its reason alone.
            moved = f"{move.old} → {move.new}{reason}" if move.old != move.new else move.reason
            self.message(f"{move.task}: {moved}")

    def state(self, state: State) -> None:
        if state.sprint.phase != self._phase:
            self._phase = state.sprint.phase
            tasks = f", {counted(len(state.tasks), 'task')}" if state.tasks else ""
            self.message(f"sprint {state.sprint.id}: {self._phase}{tasks}")

    def approve_plan(self, state: State, poll: Callable[[], bool]) -> Approval:
        return self._approver.answer(state, poll) if self._approver else LATER


class LiveTable:
    """A table of tasks, drawn again twice a second."""

    def __init__(self, approver: Approver) -> None:
        from rich.console import Console
        from rich.live import Live

        self._approver = approver
        self._state: State | None = None
        self._notes: list[str] = []
        #: The time of a requested stop: elapsed times end there.
        self._stopping_at = 0.0
        # Text of agents is never parsed as markup.
        console = Console(markup=False, emoji=False, highlight=False)
        self.live: Live = Live(
            console=console, get_renderable=self._draw, refresh_per_second=2, transient=False
        )

    def message(self, line: str) -> None:
        self._notes = [*self._notes, one_line(line)][-3:]

    def stopping(self) -> None:
        """Show that a stop was requested; safe to call from a signal handler."""
        self._stopping_at = time.time()

    def transitions(self, state: State, moves: tuple[Moved, ...]) -> None:
        self._state = state

    def state(self, state: State) -> None:
        self._state = state

    def approve_plan(self, state: State, poll: Callable[[], bool]) -> Approval:
        if not self._approver.talks:
            return self._approver.answer(state, poll)
        self.live.stop()
        try:
            return self._approver.answer(state, poll)
        finally:
            self.live.start()

    def _why(self, state: State, task: Task, now: float) -> str:
        if self._stopping_at and task.work:
            return "stopping: the agent's work is saved"
        return why(state, task, now) or task.reason

    def _visible(self, state: State) -> list[Task]:
        """The tasks in the order of the plan; if they do not fit, the active ones first."""
        from caloron.cli.render import wrapped

        tasks = list(state.tasks.values())
        width = self.live.console.width
        notes = sum(len(wrapped(note, width)) for note in self._notes)
        # The title and the head of the table take a line each.
        room = max(3, self.live.console.height - 2 - max(notes, 3))
        if len(tasks) <= room:
            return tasks
        order = {status: n for n, status in enumerate(_ACTIVE)}
        last = len(order)
        chosen = sorted(tasks, key=lambda t: (order.get(t.status, last), t.status is Status.DONE))
        # One line is for the number of hidden tasks.
        return chosen[: room - 1]

    def _title(self, state: State) -> Text:
        from rich.text import Text

        from caloron.cli.render import cropped

        sprint = state.sprint
        done = sum(1 for t in state.tasks.values() if t.status is Status.DONE)
        progress = f"{done}/{len(state.tasks)} done" if state.tasks else "planning"
        spent, budget = sprint.usage.spent.usd, sprint.settings.budget_usd
        cost = f"  ${spent:.2f} of ${budget:.2f}" if spent else ""
        stopping = "  stopping" if self._stopping_at else ""
        title = f"{sprint.id}{stopping}  {progress}{cost}  {one_line(sprint.goal)}"
        return Text(cropped(title, self.live.console.width).rstrip())

    def _draw(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        state, now = self._state, time.time()
        table = Table(
            expand=True, box=None, pad_edge=False, title_justify="left", caption_justify="left"
        )
        if state is None or state.sprint.phase == "approval":
            return table
        table.caption = Text("\n".join(self._notes)) if self._notes else None
        table.title = self._title(state)
        longest = max(map(len, (*state.tasks, _MORE.format(len(state.tasks)))))
        width = min(longest, max(12, self.live.console.width // 4))
        table.add_column("task", no_wrap=True, width=width, overflow="ellipsis")
        table.add_column("status", no_wrap=True, width=10)
        # On a narrow screen the reason needs the space; it names the role too.
        roles = self.live.console.width >= _WIDE_ENOUGH_FOR_ROLES
        if roles:
            table.add_column("agent", no_wrap=True, width=9)
        table.add_column("elapsed", no_wrap=True, width=8, justify="right")
        table.add_column("why", no_wrap=True, ratio=1, overflow="ellipsis")

        def add(task: str, status: Text, role: str, elapsed: str, reason: str) -> None:
            cells = (task, status, *((role,) if roles else ()), elapsed, one_line(reason))
            table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))

        if not state.tasks:
            add("plan", Text(state.sprint.phase), "planner", "", why_sprint(state.sprint, now))
        shown = self._visible(state)
        for task in shown:
            status = Text(task.status, style=_COLOURS.get(task.status, ""))
            role = task.work.role if task.work else ""
            elapsed = _elapsed(task, self._stopping_at)
            add(task.id, status, role, elapsed, self._why(state, task, now))
        if more := len(state.tasks) - len(shown):
            add(_MORE.format(more), Text(), "", "", "")
        return table


#: The statuses to show first when not every task fits.
_ACTIVE = (Status.ESCALATED, Status.IN_PROGRESS, Status.IN_REVIEW, Status.READY)


def _elapsed(task: Task, until: float = 0.0) -> str:
    if task.times.started_at is None:
        return ""
    seconds = int((task.times.completed_at or until or time.time()) - task.times.started_at)
    return f"{seconds // 60}:{seconds % 60:02}"
