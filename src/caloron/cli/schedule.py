"""`caloron schedule`: graphs that run when they are due, by the file of Noether's scheduler."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from caloron.cli import output
from caloron.cli.graph_words import GRAPH_FAILED, unsandboxed_option
from caloron.cli.options import dry_run_option, output_option
from caloron.cli.screen import aligned

if TYPE_CHECKING:
    from caloron.engine.schedule_config import Schedule
    from caloron.engine.schedule_runs import ScheduleRuns
    from caloron.engine.scheduled_graphs import ScheduledGraphs
    from caloron.engine.scheduler import Ran, Scheduler

_TOLD = 100

_config_option = click.option(
    "--config",
    "-c",
    default="scheduler.json",
    show_default=True,
    metavar="FILE",
    help="The jobs: name, cron, graph, input and webhook of each.",
)


@click.group()
def schedule() -> None:
    """Run graphs at the times of a schedule, in UTC.

    \b
    Examples:
      caloron schedule check --config scheduler.json
      caloron schedule run --config scheduler.json
    """


@schedule.command()
@_config_option
@click.option("--once", is_flag=True, help="Run what is due now, and end: to be called by cron.")
@unsandboxed_option
@dry_run_option
@output_option
def run(config: str, once: bool, unsandboxed: bool, dry_run: bool) -> int:
    """Run each job when it is due, until told to stop.

    A job never runs beside itself. What was missed while nothing ran is made up for once, and
    so is a run that was cut short. All jobs are checked before the first one runs.

    \b
    Examples:
      caloron schedule run --config scheduler.json
      caloron schedule run --config scheduler.json --once
    """
    from caloron.engine.scheduler import Scheduler
    from caloron.store.crash import this_process_is
    from caloron.store.lock import single_instance

    this_process_is("schedule")
    read, runs, graphs = _opened(config, unsandboxed=unsandboxed)
    _refuse_broken(read, graphs)
    if dry_run:
        planned = [{"action": "run", "target": f"{j.name} ({j.cron_text})"} for j in read.jobs]
        return output.dry_run("schedule.run", planned)
    # A service runs for months: its last answer tells of the last runs.
    done: deque[dict[str, Any]] = deque(maxlen=_TOLD)

    def tell(ran: Ran) -> None:
        done.append(_row(ran))
        how = "ok" if ran.outcome.ok else f"failed: {ran.outcome.error}"
        output.aside(f"{ran.job.name}  {ran.run_id}  {how}")
        graphs.tell_webhook(ran.job, ran.outcome)

    with single_instance(runs.lock, f"the schedule {read.path}"):
        loop = Scheduler(read.jobs, runs, graphs.run, tell=tell)
        if once:
            loop.once()
        else:
            output.aside(f"{output.counted(len(read.jobs), 'job')} of {read.path}")
            _until_told(loop)
    return _answer(read, list(done), once=once)


def _row(ran: Ran) -> dict[str, Any]:
    return {
        "job": ran.job.name,
        "run_id": ran.run_id,
        "ok": ran.outcome.ok,
        "composition_id": ran.outcome.composition_id,
        "error": ran.outcome.error,
    }


def _answer(read: Schedule, rows: list[dict[str, Any]], *, once: bool) -> int:
    """One that was told to stop has done what it was to do, however its runs went."""
    failed = [row for row in rows if not row["ok"]]
    data = {"config": str(read.path), "runs": rows, "failed": len(failed)}
    if failed and once:
        names = ", ".join(sorted({str(row["job"]) for row in failed}))
        hint = "caloron graph trace RUN tells what a run did"
        message = f"{output.counted(len(failed), 'run')} failed: {names}"
        output.failure("schedule.run", "GRAPH_FAILED", message, hint=hint, data=data)
        return GRAPH_FAILED
    how = f"{len(failed)} failed" if failed else "all well"
    text = f"{output.counted(len(rows), 'run')}, {how}." if rows else "Nothing was due."
    output.success("schedule.run", data, text)
    return 0


def _until_told(loop: Scheduler) -> None:
    """The first signal lets runs end, the second does not."""
    import os
    import signal

    told: list[int] = []

    def stop(number: int, _frame: object) -> None:
        told.append(number)
        if len(told) > 1:
            os._exit(128 + number)
        loop.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    loop.forever()


def _opened(
    config: str, *, unsandboxed: bool = False
) -> tuple[Schedule, ScheduleRuns, ScheduledGraphs]:
    from caloron.engine.schedule_config import read_schedule
    from caloron.engine.schedule_runs import ScheduleRuns
    from caloron.engine.scheduled_graphs import ScheduledGraphs
    from caloron.ledger.locate import home

    read = read_schedule(Path(config).absolute())
    graphs = ScheduledGraphs(home(), read, unsandboxed=unsandboxed, tell=output.aside)
    return read, ScheduleRuns(home() / "schedule", read.path), graphs


def _refuse_broken(read: Schedule, graphs: ScheduledGraphs) -> None:
    from caloron.errors import UsageError

    if wrong := graphs.check():
        raise UsageError(f"{read.path}: " + "\n".join(wrong), hint="nothing was run")


@schedule.command()
@_config_option
@unsandboxed_option
@output_option
def check(config: str, unsandboxed: bool) -> int:
    """Say everything that is wrong with a schedule and with the graphs that it names.

    \b
    Example:
      caloron schedule check --config scheduler.json
    """
    read, _, graphs = _opened(config, unsandboxed=unsandboxed)
    wrong = graphs.check()
    data: dict[str, Any] = {"config": str(read.path), "jobs": len(read.jobs), "errors": wrong}
    if wrong:
        output.failure("schedule.check", "INVALID_ARGS", "\n".join(wrong), data=data)
        return 2
    output.success("schedule.check", data, f"{output.counted(len(read.jobs), 'job')}, all well.")
    return 0


@schedule.command("list")
@_config_option
@output_option
def list_jobs(config: str) -> None:
    """List the jobs of a schedule: when each is due, and how its last run went.

    \b
    Example:
      caloron schedule list --config scheduler.json --output table
    """
    import time

    from caloron.engine.schedule_runs import shown
    from caloron.engine.scheduler import next_due

    read, runs, _ = _opened(config)
    rows: list[dict[str, Any]] = []
    for job in read.jobs:
        last = runs.last(job.name)
        after = last.handled if last and last.cron == job.cron_text else time.time()
        rows.append(
            {
                "job": job.name,
                "cron": job.cron_text,
                "graph": str(job.graph),
                "next": shown(next_due(job.cron, after)),
                "last": shown(last.began) if last else None,
                "ok": last.ok if last else None,
                "error": last.error if last else "",
            }
        )
    told = [(row["job"], row["cron"], row["next"] or "never", _last_run(row)) for row in rows]
    lines = aligned([("job", "cron", "next", "last"), *told]) if told else ["No jobs."]
    data = {"config": str(read.path), "jobs": rows}
    output.success("schedule.list", data, "\n".join(lines))


def _last_run(row: dict[str, Any]) -> str:
    if not row["last"]:
        return "-"
    how = "ok" if row["ok"] else f"failed: {row['error']}"
    return " ".join(output.printable(f"{row['last']} {how}").split())
