"""The progress of a running sprint: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from caloron.agents.clis.registry import line_formatter
from caloron.cli.commands.sprint.approval import Approver
from caloron.cli.format import counted, dollars, one_line, printable
from caloron.cli.output import is_terminal
from caloron.domain.model.effects import Moved
from caloron.domain.model.roles import ROLES, WorkId
from caloron.domain.model.sprint import State
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task
from caloron.domain.reporting.explain import why, why_sprint
from caloron.engine.runs.run_dirs import RunDirs, read_record
from caloron.engine.runs.runtime import runner
from caloron.engine.signals import LATER, Approval
from caloron.errors import CaloronError
from caloron.ledger import reading
from caloron.ledger.projects import Project
from caloron.store import log

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

#: Narrower terminals have no column for the cost, or for the tokens.
_WIDE_ENOUGH_FOR_COST = 80
_WIDE_ENOUGH_FOR_TOKENS = 100
_MORE = "… {} more"
_COLOURS = {
    Status.DONE: "green",
    Status.IN_PROGRESS: "cyan",
    Status.IN_REVIEW: "blue",
    Status.ESCALATED: "bold red",
    Status.BLOCKED: "yellow",
    Status.CANCELLED: "dim",
}
#: The end of a log, where the last tool call of an agent stands.
_TAIL = 16 << 10
#: A longer log takes too long to be read again and again for its tokens.
_LARGEST_REPORT = 4 << 20


@contextmanager
def view_of(
    project: Project, sprint: str, *, json: bool, approver: Approver | None = None
) -> Iterator[Lines | LiveTable]:
    """A live table on a terminal that can draw one, plain lines elsewhere.

    With JSON the lines go to standard error.
    """
    if json or not is_terminal() or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        yield Lines(approver, to_stderr=json)
        return
    table = LiveTable(approver, Activity(project, sprint).attempts)
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
        # A terminal that was closed needs no setting.
        with suppress(termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, before)


class Attempt(NamedTuple):
    """A piece of work that runs, with what its agent has done so far."""

    #: When it began, in seconds since 1970.
    since: float
    #: Its workspace is still being prepared.
    is_preparing: bool
    #: The last line of the agent's output that people read, such as its last tool call.
    line: str = ""
    tokens: int = 0


class Activity:
    """Reads what the agents of a sprint are doing, from the ledger and their logs."""

    def __init__(self, project: Project, sprint: str) -> None:
        self._project = project
        self._runs = RunDirs(project.runs)
        self._sprint = sprint
        #: What was read from a log of this size.
        self._read: dict[tuple[str, int], tuple[int, str, int]] = {}
        self._attempts: dict[str, Attempt] = {}

    def attempts(self) -> dict[str, Attempt]:
        """The work in flight, by its item; the last known one if the ledger cannot be read."""
        with log.ignored(CaloronError, sqlite3.Error, message="cannot read the work in flight"):
            with reading.ledger_if_any(self._project) as connection:
                rows = reading.rows(connection, "running") if connection else []
            self._attempts = {
                row["id"]: self._attempt(row["id"], row["token"], row["started"], row["claimed"])
                for row in rows
                if row["id"].startswith(f"{self._sprint}/")
            }
        return self._attempts

    def _attempt(self, item: str, token: int, started: int | None, claimed: int) -> Attempt:
        if started is None:
            return Attempt(claimed / 1000, is_preparing=True)
        line, tokens = "", 0
        if ROLES[WorkId.parse(item).role].needs_agent:
            failures = (CaloronError, OSError, ValueError)
            with log.ignored(*failures, message="cannot read the log of an agent", item=item):
                line, tokens = self._progress(item, token)
        return Attempt(started / 1000, is_preparing=False, line=line, tokens=tokens)

    def _progress(self, item: str, token: int) -> tuple[str, int]:
        """The last readable line of a log, and the tokens so far."""
        run = self._runs.of(item, token)
        output = run / "output.log"
        size = output.stat().st_size if output.exists() else 0
        known = self._read.get((item, token))
        if size and (known is None or known[0] != size):
            framework = read_record(run).framework
            known = size, _last_line(output, framework), self._tokens(run, framework, size)
            self._read[item, token] = known
        return (known[1], known[2]) if known else ("", 0)

    def _tokens(self, run: Path, framework: str, size: int) -> int:
        if not framework or size > _LARGEST_REPORT:
            return 0
        report = runner(self._project, framework).read_report(run)
        return report.tokens_in + report.tokens_out


def _last_line(output: Path, framework: str) -> str:
    with output.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        lines = file.read().decode("utf-8", "replace").splitlines()
    readable = line_formatter(framework)
    # The result of a tool is indented; the call before it says more.
    shown = (part for line in reversed(lines) for part in reversed(readable(line).splitlines()))
    return next((one_line(part) for part in shown if part.strip() and part[0] != " "), "")


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

    def __init__(
        self, approver: Approver | None, attempts: Callable[[], dict[str, Attempt]]
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self._approver = approver
        self._attempts = attempts
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
        for move in moves:
            if move.reason and (move.old, move.new) == (Status.IN_REVIEW, Status.IN_PROGRESS):
                self.message(f"{move.task}: {move.reason}")

    def state(self, state: State) -> None:
        self._state = state

    def approve_plan(self, state: State, poll: Callable[[], bool]) -> Approval:
        if self._approver is None or not self._approver.talks:
            return self._approver.answer(state, poll) if self._approver else LATER
        self.live.stop()
        try:
            return self._approver.answer(state, poll)
        finally:
            self.live.start()

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

        state = self._state
        table = Table(
            expand=True, box=None, pad_edge=False, title_justify="left", caption_justify="left"
        )
        if state is None or (state.sprint.phase == "approval" and self._approver):
            return table
        table.caption = Text("\n".join(self._notes)) if self._notes else None
        table.title = self._title(state)
        longest = max(map(len, (*state.tasks, _MORE.format(len(state.tasks)))))
        width = min(longest, max(12, self.live.console.width // 4))
        table.add_column("task", no_wrap=True, width=width, overflow="ellipsis")
        table.add_column("step", no_wrap=True, width=11)
        table.add_column("elapsed", no_wrap=True, width=7, justify="right")
        amounts = []
        if self.live.console.width >= _WIDE_ENOUGH_FOR_TOKENS:
            amounts.append("tokens")
        if self.live.console.width >= _WIDE_ENOUGH_FOR_COST:
            amounts.append("cost")
        for amount in amounts:
            table.add_column(amount, no_wrap=True, width=7, justify="right")
        table.add_column("now", no_wrap=True, ratio=1, overflow="ellipsis")
        rows, more = self._rows(state)
        for row in rows:
            used = (getattr(row, amount) for amount in amounts)
            step = Text(row.step, style=row.style)
            cells = (row.task, step, row.elapsed, *used, one_line(row.now))
            table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
        if more:
            table.add_row(Text(_MORE.format(more)))
        return table

    def _rows(self, state: State) -> tuple[list[Row], int]:
        """The rows to draw, and the number of tasks for which there is no room."""
        attempts, now = self._attempts(), self._stopping_at or time.time()
        shown = self._visible(state)
        rows = [_row(state, task, attempts, now) for task in shown]
        if not state.tasks:
            rows = [_planning_row(state, attempts, now)]
        if self._stopping_at:
            rows = [
                row._replace(now="stopping: the agent's work is saved") if row.works else row
                for row in rows
            ]
        return rows, len(state.tasks) - len(shown)


class Row(NamedTuple):
    """A line of the table."""

    task: str
    step: str
    elapsed: str
    tokens: str
    cost: str
    now: str
    style: str = ""
    #: Work is in flight or waits for a slot.
    works: bool = False


#: The statuses to show first when not every task fits.
_ACTIVE = (Status.ESCALATED, Status.IN_PROGRESS, Status.IN_REVIEW, Status.READY)
#: The step of a task while this work runs.
_STEPS = {"implement": "writing", "review": "reviewing", "fix": "fixing", "resolve": "resolving",
          "check": "checking", "verify": "testing"}  # fmt: skip


def _row(state: State, task: Task, attempts: dict[str, Attempt], now: float) -> Row:
    attempt = attempts.get(task.work.item) if task.work else None
    step, text = str(task.status), why(state, task, now) or task.reason
    if task.work and attempt:
        step = _STEPS.get(task.work.role, step)
        text = _doing(attempt, now) or (task.work.role == "fix" and task.work.reason) or text
    spent = task.usage.spent
    used = spent.tokens + (attempt.tokens if attempt else 0)
    started = task.times.started_at
    return Row(
        task.id,
        step,
        _elapsed((task.times.completed_at or now) - started) if started else "",
        _thousands(used),
        dollars(spent.usd) if spent.usd else "",
        text,
        _COLOURS.get(task.status, ""),
        works=bool(task.work),
    )


def _planning_row(state: State, attempts: dict[str, Attempt], now: float) -> Row:
    """The work before the tasks: the verification of main, then the plan."""
    attempt = next(iter(attempts.values()), None)
    text = (_doing(attempt, now) if attempt else "") or why_sprint(state.sprint, now)
    return Row(
        "plan",
        state.sprint.phase,
        _elapsed(now - attempt.since) if attempt else "",
        _thousands(attempt.tokens if attempt else 0),
        dollars(state.sprint.usage.spent.usd) if state.sprint.usage.spent.usd else "",
        text,
        works=attempt is not None,
    )


def _doing(attempt: Attempt, now: float) -> str:
    if attempt.is_preparing:
        return f"preparing its workspace ({_elapsed(now - attempt.since)})"
    return attempt.line


def _elapsed(seconds: float) -> str:
    whole = max(0, int(seconds))
    return f"{whole // 60}:{whole % 60:02}"


def _thousands(tokens: int) -> str:
    if tokens < 1000:
        return str(tokens) if tokens else ""
    return f"{tokens / 1000:.1f}k" if tokens < 1_000_000 else f"{tokens / 1e6:.1f}M"
