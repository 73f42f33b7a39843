"""Who looks on while a sprint runs: a table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from caloron.cli.approval import Approver
from caloron.cli.output import counted, is_terminal, printable
from caloron.domain.actions import Moved
from caloron.domain.sprint import State, Task
from caloron.domain.status import Status
from caloron.domain.why import why, why_sprint
from caloron.engine.engine import Answer, Watcher

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

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
    with table.live:
        yield table


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
        from rich.live import Live

        self._approver = approver
        self._state: State | None = None
        self._notes: list[str] = []
        self.live: Live = Live(get_renderable=self._draw, refresh_per_second=2, transient=False)

    def told(self, line: str) -> None:
        self._notes = [*self._notes, printable(line)][-3:]

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

    def _fitting(self, state: State) -> list[Task]:
        """The tasks in the order of the plan; if they do not fit, first those that move."""
        tasks = list(state.tasks.values())
        room = max(5, self.live.console.height - 5)
        if len(tasks) <= room:
            return tasks
        order = {status: n for n, status in enumerate(_INTERESTING)}
        last = len(order)
        chosen = sorted(tasks, key=lambda t: (order.get(t.status, last), t.status is Status.DONE))
        return chosen[:room]

    def _task_width(self, state: State) -> int:
        """As wide as the names are, but the reasons keep the greater part of the screen."""
        longest = max((len(name) for name in state.tasks), default=4)
        return min(max(longest, 4), max(16, self.live.console.width // 4))

    def _draw(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        state = self._state
        table = Table(
            expand=True, box=None, pad_edge=False, title_justify="left", caption_justify="left"
        )
        if state is None or state.sprint.phase == "approval":
            return table
        table.caption = Text("\n".join(self._notes)) if self._notes else None
        done = sum(1 for t in state.tasks.values() if t.status is Status.DONE)
        sprint = state.sprint
        cost = f"${sprint.spent.usd:.2f} of ${sprint.budget_usd:.2f}  " if sprint.spent.usd else ""
        goal = _shorten(sprint.goal, max(20, self.live.console.width - 30 - len(cost)))
        far = f"{done}/{len(state.tasks)} done" if state.tasks else "planning"
        table.title = Text(f"{sprint.id}  {far}  {cost}{goal}")
        table.add_column("task", no_wrap=True, width=self._task_width(state))
        table.add_column("status", no_wrap=True, width=10)
        table.add_column("agent", no_wrap=True, width=9)
        table.add_column("elapsed", no_wrap=True, width=8, justify="right")
        table.add_column("why", no_wrap=True, ratio=1, overflow="ellipsis")
        if not state.tasks:
            table.add_row("plan", state.sprint.phase, "po", "", why_sprint(state.sprint))
        for task in self._fitting(state):
            table.add_row(
                task.id,
                f"[{_COLOURS.get(task.status, 'default')}]{task.status}",
                task.work.role if task.work else "",
                _elapsed(task),
                _plain(why(state, task) or task.reason),
            )
        return table


#: What to show first when not everything fits.
_INTERESTING = (Status.ESCALATED, Status.IN_PROGRESS, Status.IN_REVIEW, Status.READY)


def _elapsed(task: Task) -> str:
    if task.started_at is None:
        return ""
    seconds = int((task.completed_at or time.time()) - task.started_at)
    return f"{seconds // 60}:{seconds % 60:02}"


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(printable(text).replace("\n", " "))


def _shorten(text: str, width: int) -> str:
    line = " ".join(printable(text).split())
    return line if len(line) <= width else line[: width - 1] + "…"
