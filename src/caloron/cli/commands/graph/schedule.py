"""`caloron schedule`: run graphs at the times of a schedule file."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from caloron.cli import output
from caloron.cli.app import dry_run_option, output_option
from caloron.cli.commands.graph.common import GRAPH_FAILED, unsandboxed_option
from caloron.cli.format import counted, printable
from caloron.cli.render import aligned

if TYPE_CHECKING:
    from caloron.schedule.config import Schedule
    from caloron.schedule.jobs import ScheduledGraphs
    from caloron.schedule.scheduler import FinishedRun, RunStore, Scheduler

_MAX_REPORTED_RUNS = 100

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
    from caloron.schedule.scheduler import Scheduler
    from caloron.store.crash import this_process_is
    from caloron.store.lock import single_instance

    this_process_is("schedule")
    timetable, runs, graphs = _opened(config, unsandboxed=unsandboxed)
    _refuse_broken(timetable, graphs)
    if dry_run:
        planned = [{"action": "run", "target": f"{j.name} ({j.cron_text})"} for j in timetable.jobs]
        return output.dry_run("schedule.run", planned)
    # A service runs for months, so its answer covers only the last runs.
    done: deque[dict[str, Any]] = deque(maxlen=_MAX_REPORTED_RUNS)

    def finished(run: FinishedRun) -> None:
        done.append(_row(run))
        how = "ok" if run.outcome.ok else f"failed: {run.outcome.error}"
        output.note(f"{run.job.name}  {run.run_id}  {how}")
        graphs.call_webhook(run.job, run.outcome)

    with single_instance(runs.lock, f"the schedule {timetable.path}"):
        loop = Scheduler(timetable.jobs, runs, graphs.run, finished=finished)
        if once:
            loop.once()
        else:
            output.note(f"{counted(len(timetable.jobs), 'job')} of {timetable.path}")
            _until_signalled(loop)
    return _answer(timetable, list(done), once=once)


def _row(run: FinishedRun) -> dict[str, Any]:
    return {
        "job": run.job.name,
        "run_id": run.run_id,
        "ok": run.outcome.ok,
        "composition_id": run.outcome.composition_id,
        "error": run.outcome.error,
    }


def _answer(timetable: Schedule, rows: list[dict[str, Any]], *, once: bool) -> int:
    """Report the runs; without `--once` a failed run is no failure of the service."""
    failed = [row for row in rows if not row["ok"]]
    data = {"config": str(timetable.path), "runs": rows, "failed": len(failed)}
    if failed and once:
        names = ", ".join(sorted({str(row["job"]) for row in failed}))
        hint = "caloron graph trace RUN tells what a run did"
        message = f"{counted(len(failed), 'run')} failed: {names}"
        output.failure("schedule.run", "GRAPH_FAILED", message, hint=hint, data=data)
        return GRAPH_FAILED
    how = f"{len(failed)} failed" if failed else "all well"
    text = f"{counted(len(rows), 'run')}, {how}." if rows else "Nothing was due."
    output.success("schedule.run", data, text)
    return 0


def _until_signalled(loop: Scheduler) -> None:
    """Let runs end at the first signal; exit at the second."""
    import os
    import signal

    signals: list[int] = []

    def stop(number: int, _frame: object) -> None:
        signals.append(number)
        if len(signals) > 1:
            os._exit(128 + number)
        loop.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    loop.forever()


def _opened(
    config: str, *, unsandboxed: bool = False
) -> tuple[Schedule, RunStore, ScheduledGraphs]:
    from caloron.ledger.locate import home
    from caloron.schedule.config import read_schedule
    from caloron.schedule.jobs import ScheduledGraphs
    from caloron.schedule.scheduler import RunStore

    timetable = read_schedule(Path(config).absolute())
    graphs = ScheduledGraphs(home(), timetable, unsandboxed=unsandboxed, note=output.note)
    return timetable, RunStore(home() / "schedule", timetable.path), graphs


def _refuse_broken(timetable: Schedule, graphs: ScheduledGraphs) -> None:
    from caloron.errors import UsageError

    if errors := graphs.check():
        raise UsageError(f"{timetable.path}: " + "\n".join(errors), hint="nothing was run")


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
    timetable, _, graphs = _opened(config, unsandboxed=unsandboxed)
    errors = graphs.check()
    data: dict[str, Any] = {
        "config": str(timetable.path),
        "jobs": len(timetable.jobs),
        "errors": errors,
    }
    if errors:
        output.failure("schedule.check", "INVALID_ARGS", "\n".join(errors), data=data)
        return 2
    output.success("schedule.check", data, f"{counted(len(timetable.jobs), 'job')}, all well.")
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

    from caloron.schedule.scheduler import next_due

    timetable, runs, _ = _opened(config)
    rows: list[dict[str, Any]] = []
    for job in timetable.jobs:
        last = runs.last(job.name)
        after = last.handled if last and last.cron == job.cron_text else time.time()
        rows.append(
            {
                "job": job.name,
                "cron": job.cron_text,
                "graph": str(job.graph),
                "next": _time(next_due(job.cron, after)),
                "last": _time(last.began) if last else None,
                "ok": last.ok if last else None,
                "error": last.error if last else "",
            }
        )
    cells = [(row["job"], row["cron"], row["next"] or "never", _last_run(row)) for row in rows]
    lines = aligned([("job", "cron", "next", "last"), *cells])
    data = {"config": str(timetable.path), "jobs": rows}
    output.success("schedule.list", data, "\n".join(lines))


def _time(moment: float | None) -> str | None:
    if moment is None:
        return None
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")


def _last_run(row: dict[str, Any]) -> str:
    if not row["last"]:
        return "-"
    how = "ok" if row["ok"] else f"failed: {row['error']}"
    return " ".join(printable(f"{row['last']} {how}").split())
