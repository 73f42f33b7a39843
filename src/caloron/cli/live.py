"""Who looks on while a sprint runs: a table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from caloron.cli.approval import Approver
from caloron.cli.output import counted, is_terminal, printable
from caloron.cli.screen import cropped, wrapped
from caloron.domain.actions import Moved
from caloron.domain.sprint import State, Task
from caloron.domain.status import Status
from caloron.domain.why import why, why_sprint
from caloron.engine.engine import Answer, Watcher

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
def watcher_for(approver: Approver, *, json: bool) -> Iterator[Watcher]:
    """The right view for where the output goes; with JSON, progress goes to standard error."""
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
        # Standard input is no terminal.
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
        #: The one that was told last.
        self._phase = phase

    def told(self, line: str) -> None:
        click.echo(f"{time.strftime('%H:%M:%S')}  {printable(line)}", err=self._stderr)

    def moved(self, state: State, moves: tuple[Moved, ...]) -> None:
        for move in moves:
            reason = f"  ({move.reason})" if move.reason else ""
            # What changed no status is told by its reason alone.
            moved = f"{move.old} → {move.new}{reason}" if move.old != move.new else move.reason
            self.told(f"{move.task}: {moved}")

    def seen(self, state: State) -> None:
        if state.sprint.phase != self._phase:
            self._phase = state.sprint.phase
            tasks = f", {counted(len(state.tasks), 'task')}" if state.tasks else ""
            self.told(f"sprint {state.sprint.id}: {self._phase}{tasks}")

    def approves(self, state: State, meanwhile: Callable[[], bool]) -> Answer:
        return self._approver.answer(state, meanwhile) if self._approver else None


class LiveTable:
    """A table of tasks that is drawn again when something changes, and while time passes."""

    def __init__(self, approver: Approver) -> None:
        from rich.console import Console
        from rich.live import Live

        self._approver = approver
        self._state: State | None = None
        self._notes: list[str] = []
        #: When a stop was asked for: time does not count from then on.
        self._stopping_at = 0.0
        # Text of agents is never read as markup, whichever cell it is in.
        plain = Console(markup=False, emoji=False, highlight=False)
        self.live: Live = Live(
            console=plain, get_renderable=self._draw, refresh_per_second=2, transient=False
        )

    def told(self, line: str) -> None:
        self._notes = [*self._notes, _one_line(line)][-3:]

    def stopping(self) -> None:
        """Show that a stop was asked for; safe to call from a signal handler."""
        self._stopping_at = time.time()

    def moved(self, state: State, moves: tuple[Moved, ...]) -> None:
        self._state = state

    def seen(self, state: State) -> None:
        self._state = state

    def approves(self, state: State, meanwhile: Callable[[], bool]) -> Answer:
        if not self._approver.talks:
            return self._approver.answer(state, meanwhile)
        self.live.stop()
        try:
            return self._approver.answer(state, meanwhile)
        finally:
            self.live.start()

    def _why(self, state: State, task: Task, now: float) -> str:
        if self._stopping_at and task.work:
            return "stopping: what the agent has is saved"
        return why(state, task, now) or task.reason

    def _fitting(self, state: State) -> list[Task]:
        """The tasks in the order of the plan; if they do not fit, first those that move."""
        tasks = list(state.tasks.values())
        width = self.live.console.width
        notes = sum(len(wrapped(note, width)) for note in self._notes)
        # The title and the head of the table take a line each.
        room = max(3, self.live.console.height - 2 - max(notes, 3))
        if len(tasks) <= room:
            return tasks
        order = {status: n for n, status in enumerate(_INTERESTING)}
        last = len(order)
        chosen = sorted(tasks, key=lambda t: (order.get(t.status, last), t.status is Status.DONE))
        # One line says how many are not shown.
        return chosen[: room - 1]

    def _task_width(self, state: State) -> int:
        """As wide as the names are, but the reasons keep the greater part of the screen."""
        longest = max(map(len, (*state.tasks, _MORE.format(len(state.tasks)))))
        return min(longest, max(12, self.live.console.width // 4))

    def _title(self, state: State) -> Text:
        from rich.text import Text

        sprint = state.sprint
        done = sum(1 for t in state.tasks.values() if t.status is Status.DONE)
        far = f"{done}/{len(state.tasks)} done" if state.tasks else "planning"
        cost = f"  ${sprint.spent.usd:.2f} of ${sprint.budget_usd:.2f}" if sprint.spent.usd else ""
        stopping = "  stopping" if self._stopping_at else ""
        title = f"{sprint.id}{stopping}  {far}{cost}  {_one_line(sprint.goal)}"
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
        table.add_column("task", no_wrap=True, width=self._task_width(state), overflow="ellipsis")
        table.add_column("status", no_wrap=True, width=10)
        # On a narrow screen the reason needs the room; it names the role too.
        roles = self.live.console.width >= _WIDE_ENOUGH_FOR_ROLES
        if roles:
            table.add_column("agent", no_wrap=True, width=9)
        table.add_column("elapsed", no_wrap=True, width=8, justify="right")
        table.add_column("why", no_wrap=True, ratio=1, overflow="ellipsis")

        def add(task: str, status: Text, role: str, elapsed: str, reason: str) -> None:
            cells = (task, status, *((role,) if roles else ()), elapsed, _one_line(reason))
            table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))

        if not state.tasks:
            add("plan", Text(state.sprint.phase), "po", "", why_sprint(state.sprint, now))
        shown = self._fitting(state)
        for task in shown:
            status = Text(task.status, style=_COLOURS.get(task.status, ""))
            role = task.work.role if task.work else ""
            elapsed = _elapsed(task, self._stopping_at)
            add(task.id, status, role, elapsed, self._why(state, task, now))
        if more := len(state.tasks) - len(shown):
            add(_MORE.format(more), Text(), "", "", "")
        return table


#: What to show first when not everything fits.
_INTERESTING = (Status.ESCALATED, Status.IN_PROGRESS, Status.IN_REVIEW, Status.READY)


def _elapsed(task: Task, until: float = 0.0) -> str:
    if task.started_at is None:
        return ""
    seconds = int((task.completed_at or until or time.time()) - task.started_at)
    return f"{seconds // 60}:{seconds % 60:02}"


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())
