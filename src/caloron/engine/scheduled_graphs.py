"""Runs the graph of a job as `caloron graph run` does, and tells its webhook how that went."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from caloron.engine.graph_home import GraphHome, Wishes
from caloron.engine.schedule_config import Job, Schedule
from caloron.engine.scheduler import Outcome
from caloron.engine.tick import tick_graph
from caloron.engine.visit_by_id import visit_by_id
from caloron.errors import CaloronError, UsageError
from caloron.graph.canonical import composition_id
from caloron.graph.errors import GraphError, Refused
from caloron.graph.flow import follow
from caloron.graph.parse import parse_graph
from caloron.graph.prepare import Prepared, prepare
from caloron.graph.profile import PROFILES
from caloron.graph.run import Limits
from caloron.graph.types import Known
from caloron.store import log

_PATIENCE_S = 10.0
#: A tick begins nothing more after so many seconds.
_TICK_S = 50.0


class ScheduledGraphs:
    """Each run reads its graph anew and meets the stages that there are by then."""

    def __init__(
        self, home: Path, schedule: Schedule, *, unsandboxed: bool, tell: Callable[[str], None]
    ) -> None:
        self._home = home
        self._schedule = schedule
        self._unsandboxed = unsandboxed
        self._tell = tell

    def check(self) -> list[str]:
        """Everything for which a job could not run as things are now."""
        wrong = []
        for job in self._schedule.jobs:
            try:
                at, prepared = self._prepared(job)
                at.check_sandbox(at.stages_of(prepared))
                findings = follow(prepared.root, Known(job.input), prepared.catalogue)
                wrong += [f"{job.name}: {error}" for error in findings]
            except Refused as error:
                wrong += [f"{job.name}: {one}" for one in error.findings]
            except (GraphError, CaloronError, OSError) as error:
                wrong.append(f"{job.name}: {error}")
        return wrong

    def run(self, job: Job, run_id: str) -> Outcome:
        """The outcome of a run, however it ends."""
        named = ""
        try:
            named = composition_id(parse_graph(job.graph.read_bytes(), PROFILES["strict"]))
            if named == tick_graph().composition_id:
                # The tick of a sprint: what it decides is carried out before this run ends.
                output = visit_by_id(_sprint_in(job), self._tell, job.timeout_s or _TICK_S)
                return Outcome(ok=True, composition_id=named, output=output)
            at, prepared = self._prepared(job)
            limits = Limits(run_seconds=job.timeout_s)
            wishes = Wishes(
                run_id=run_id, durable=job.durable, retry_failed=job.durable, limits=limits
            )
            done = at.run(prepared, job.input, wishes)
        except (GraphError, CaloronError, OSError) as error:
            log.warning("a scheduled graph failed", error=error, job=job.name, run=run_id)
            return Outcome(ok=False, composition_id=named, error=str(error))
        return Outcome(ok=True, composition_id=prepared.composition_id, output=done.output)

    def _prepared(self, job: Job) -> tuple[GraphHome, Prepared]:
        at = GraphHome(self._home, unsandboxed=self._unsandboxed, more=self._schedule.stages)
        return at, prepare(job.graph.read_bytes(), at.catalogue, PROFILES["strict"])

    def tell_webhook(self, job: Job, outcome: Outcome) -> None:
        """One POST; who does not take it is not asked again."""
        if not job.webhook:
            return
        body: dict[str, Any] = outcome.body(job.name)
        request = urllib.request.Request(
            job.webhook,
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "User-Agent": "caloron-schedule"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
                answer.read(1)
        except (urllib.error.URLError, OSError, ValueError) as error:
            log.warning("a webhook was not taken", error=error, job=job.name)
            self._tell(f"the webhook of {job.name} was not taken: {error}")


def _sprint_in(job: Job) -> str:
    """The sprint that a job ticks."""
    named = job.input.get("sprint_id") if isinstance(job.input, dict) else None
    if not isinstance(named, str):
        raise UsageError(
            f"the input of {job.name} names no sprint",
            hint='give the job an input such as {"sprint_id": "shop-1"}',
        )
    return named
