"""Runs the graph of a job as `caloron graph run` does, and calls its webhook afterwards."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from caloron.engine.graphs.runtime import GraphRuntime, RunOptions
from caloron.engine.graphs.tick_graph import tick_graph
from caloron.engine.one_shot import run_once
from caloron.errors import CaloronError, UsageError
from caloron.graph.checker import check_value
from caloron.graph.errors import GraphError, Refused
from caloron.graph.nodes import composition_id
from caloron.graph.parser import parse_graph
from caloron.graph.prepare import Prepared, prepare
from caloron.graph.runtime.run import RunLimits
from caloron.schedule.config import Job, Schedule
from caloron.schedule.scheduler import Outcome
from caloron.store import log

_WEBHOOK_TIMEOUT_S = 10.0
#: A tick starts nothing more after this many seconds.
_TICK_S = 50.0


@dataclass
class ScheduledGraphs:
    """The jobs of a schedule; each run reads its graph and the available stages again."""

    home: Path
    schedule: Schedule
    unsandboxed: bool
    note: Callable[[str], None]

    def check(self) -> list[str]:
        """Return every reason for which a job could not run now."""
        errors = []
        for job in self.schedule.jobs:
            try:
                home, prepared = self._prepare(job)
                home.check_sandbox(home.stages_of(prepared))
                checked = check_value(prepared.root, job.input, prepared.catalogue)
                errors += [f"{job.name}: {error}" for error in checked.errors]
            except Refused as error:
                errors += [f"{job.name}: {reason}" for reason in error.errors]
            except (GraphError, CaloronError, OSError) as error:
                errors.append(f"{job.name}: {error}")
        return errors

    def run(self, job: Job, run_id: str) -> Outcome:
        """Run a job; a failure is an outcome, too."""
        graph_id = ""
        try:
            graph_id = composition_id(parse_graph(job.file.read_bytes()))
            if graph_id == tick_graph().composition_id:
                # A tick of a sprint: its effects are performed before this run ends.
                output = run_once(_sprint_in(job), self.note, job.timeout_s or _TICK_S)
                return Outcome(ok=True, composition_id=graph_id, output=output)
            home, prepared = self._prepare(job)
            limits = RunLimits(run_seconds=job.timeout_s)
            options = RunOptions(
                run_id=run_id, durable=job.durable, retry_failed=job.durable, limits=limits
            )
            done = home.run(prepared, job.input, options)
        except (GraphError, CaloronError, OSError) as error:
            log.warning("a scheduled graph failed", error=error, job=job.name, run=run_id)
            return Outcome(ok=False, composition_id=graph_id, error=str(error))
        return Outcome(ok=True, composition_id=prepared.composition_id, output=done.output)

    def _prepare(self, job: Job) -> tuple[GraphRuntime, Prepared]:
        home = GraphRuntime(self.home, unsandboxed=self.unsandboxed, more=self.schedule.stages)
        return home, prepare(job.file.read_bytes(), home.catalogue)

    def call_webhook(self, job: Job, outcome: Outcome) -> None:
        """Send one POST; it is not repeated."""
        if not job.webhook:
            return
        request = urllib.request.Request(
            job.webhook,
            json.dumps(outcome.body(job.name)).encode(),
            {"Content-Type": "application/json", "User-Agent": "caloron-schedule"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=_WEBHOOK_TIMEOUT_S) as response:
                response.read(1)
        except (urllib.error.URLError, OSError, ValueError) as error:
            log.warning("a webhook was not taken", error=error, job=job.name)
            self.note(f"the webhook of {job.name} was not taken: {error}")


def _sprint_in(job: Job) -> str:
    """Return the id of the sprint that a job advances."""
    sprint = job.input.get("sprint_id") if isinstance(job.input, dict) else None
    if not isinstance(sprint, str):
        raise UsageError(
            f"the input of {job.name} names no sprint",
            hint='give the job an input such as {"sprint_id": "shop-1"}',
        )
    return sprint
