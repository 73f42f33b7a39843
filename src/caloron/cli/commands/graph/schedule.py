"""`caloron schedule`: run graphs at the times of a schedule file."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from pathlib import Path
from typing import Any

import click

from caloron.cli import output
from caloron.cli.app import Answer, DryRun, Failed, attributes, group, planned
from caloron.cli.commands.graph.common import unsandboxed_option
from caloron.cli.format import counted, one_line
from caloron.cli.render import aligned
from caloron.durations import utc
from caloron.errors import UsageError
from caloron.ledger.locate import home
from caloron.schedule.config import Schedule, read_schedule
from caloron.schedule.jobs import ScheduledGraphs
from caloron.schedule.scheduler import FinishedRun, RunStore, Scheduler, next_due
from caloron.store.crash import this_process_is
from caloron.store.lock import single_instance

_MAX_REPORTED_RUNS = 100

_config_option = click.option(
    "--config",
    "-c",
    default="scheduler.json",
    show_default=True,
    metavar="FILE",
    help="The jobs: name, cron, graph, input and webhook of each.",
)


@group(
    examples=[
        "caloron schedule check --config scheduler.json",
        "caloron schedule run --config scheduler.json",
    ]
)
def schedule() -> None:
    """Run graphs at the times of a schedule, in UTC."""


@schedule.command(
    dry_run=True,
    examples=[
        "caloron schedule run --config scheduler.json",
        "caloron schedule run --config scheduler.json --once",
    ],
)
@_config_option
@click.option("--once", is_flag=True, help="Run the jobs that are due now, and exit (for cron).")
@unsandboxed_option
def run(config: str, once: bool, unsandboxed: bool, dry_run: bool) -> Answer | DryRun:
    """Run each job when it is due, until a signal.

    A job never runs twice at a time. Runs that were missed meanwhile are made up for by one run,
    and an interrupted run is repeated. All jobs are checked before the first one runs.
    """
    this_process_is("schedule")
    timetable, runs, graphs = _open(config, unsandboxed=unsandboxed)
    if errors := graphs.check():
        raise UsageError(f"{timetable.path}: " + "\n".join(errors), hint="nothing was run")
    if dry_run:
        return DryRun(*(planned("run", f"{j.name} ({j.cron})") for j in timetable.jobs))
    # A service runs for months, so its answer covers only the last runs.
    done: deque[dict[str, Any]] = deque(maxlen=_MAX_REPORTED_RUNS)

    def finished(run: FinishedRun) -> None:
        data = attributes(run.outcome, "ok", "composition_id", "error")
        done.append({"job": run.job.name, "run_id": run.run_id, **data})
        result = "ok" if run.outcome.ok else f"failed: {run.outcome.error}"
        output.note(f"{run.job.name}  {run.run_id}  {result}")
        graphs.call_webhook(run.job, run.outcome)

    with single_instance(runs.lock, f"the schedule {timetable.path}"):
        loop = Scheduler(timetable.jobs, runs, graphs.run, finished=finished)
        if once:
            loop.once()
        else:
            output.note(f"{counted(len(timetable.jobs), 'job')} of {timetable.path}")
            _run_until_signalled(loop)
    return _answer(timetable, list(done), once=once)


def _answer(timetable: Schedule, rows: list[dict[str, Any]], *, once: bool) -> Answer:
    """Report the runs; without `--once` a failed run is no failure of the service."""
    failed = [row for row in rows if not row["ok"]]
    data = {"config": str(timetable.path), "runs": rows, "failed": len(failed)}
    if failed and once:
        names = ", ".join(sorted({str(row["job"]) for row in failed}))
        hint = "caloron graph trace RUN shows what a run did"
        message = f"{counted(len(failed), 'run')} failed: {names}"
        raise Failed("GRAPH_FAILED", message, hint=hint, data=data)
    summary = f"{len(failed)} failed" if failed else "all well"
    return Answer(data, f"{counted(len(rows), 'run')}, {summary}." if rows else "Nothing was due.")


def _run_until_signalled(loop: Scheduler) -> None:
    """Let runs end at the first signal; exit at the second."""
    signals: list[int] = []

    def stop(number: int, _frame: object) -> None:
        signals.append(number)
        if len(signals) > 1:
            os._exit(128 + number)
        loop.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    loop.forever()


def _open(config: str, *, unsandboxed: bool = False) -> tuple[Schedule, RunStore, ScheduledGraphs]:
    timetable = read_schedule(Path(config).absolute())
    graphs = ScheduledGraphs(home(), timetable, unsandboxed=unsandboxed, note=output.note)
    return timetable, RunStore(home() / "schedule", timetable.path), graphs


@schedule.command(examples=["caloron schedule check --config scheduler.json"])
@_config_option
@unsandboxed_option
def check(config: str, unsandboxed: bool) -> Answer:
    """Report every error of a schedule and of the graphs that it names."""
    timetable, _, graphs = _open(config, unsandboxed=unsandboxed)
    errors = graphs.check()
    data = {"config": str(timetable.path), "jobs": len(timetable.jobs), "errors": errors}
    if errors:
        raise Failed("INVALID_ARGS", "\n".join(errors), data=data)
    return Answer(data, f"{counted(len(timetable.jobs), 'job')}, all well.")


@schedule.command("list", examples=["caloron schedule list --config scheduler.json"])
@_config_option
def list_jobs(config: str) -> Answer:
    """List the jobs of a schedule: when each is due, and the result of its last run."""
    timetable, runs, _ = _open(config)
    rows: list[dict[str, Any]] = []
    for job in timetable.jobs:
        last = runs.last(job.name)
        after = last.handled if last and last.cron == job.cron else time.time()
        due = next_due(job.times, after)
        rows.append(
            {
                "job": job.name,
                "cron": job.cron,
                "graph": str(job.file),
                "next": utc(due) if due is not None else None,
                "last": utc(last.began) if last and last.began is not None else None,
                "ok": last.ok if last else None,
                "error": last.error if last else "",
            }
        )
    cells = [(row["job"], row["cron"], row["next"] or "never", _last_run(row)) for row in rows]
    data = {"config": str(timetable.path), "jobs": rows}
    return Answer(data, "\n".join(aligned([("job", "cron", "next", "last"), *cells])))


def _last_run(row: dict[str, Any]) -> str:
    if not row["last"]:
        return "-"
    return one_line(f"{row['last']} {'ok' if row['ok'] else 'failed: ' + row['error']}")
