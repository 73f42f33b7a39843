"""Runs graphs when they are due: none beside itself, what was missed once, all written down."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from caloron.domain.cron import Cron
from caloron.engine.schedule_config import Job
from caloron.engine.schedule_runs import ScheduleRuns
from caloron.store.crash import crashpoint

#: The machine's clock may be set, or it may sleep: no wait is longer than this.
_LONGEST_WAIT_S = 20.0
_ATTEMPTS = 2
_CUT_SHORT = f"it was cut short {_ATTEMPTS} times"


class Clock(Protocol):
    """Time as the scheduler sees it."""

    def now(self) -> float: ...

    def wait(self, wake: threading.Event, seconds: float) -> None:
        """Until somebody wakes us, or the time is over."""
        ...


class WallClock:
    def now(self) -> float:
        return time.time()

    def wait(self, wake: threading.Event, seconds: float) -> None:
        wake.wait(seconds)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run went, as the webhook tells it."""

    ok: bool
    composition_id: str
    output: Any = None
    error: str = ""

    def body(self, job: str) -> dict[str, Any]:
        told = {"ok": self.ok, "job": job, "composition_id": self.composition_id}
        told["output"] = self.output if self.ok else None
        return told if self.ok else told | {"error": self.error}


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """One run, for whoever watches."""

    job: Job
    due: float
    run_id: str
    outcome: Outcome


class Scheduler:
    """A loop over the jobs of one schedule, and a thread for each run."""

    def __init__(
        self,
        jobs: tuple[Job, ...],
        runs: ScheduleRuns,
        run: Callable[[Job, str], Outcome],
        *,
        clock: Clock | None = None,
        tell: Callable[[Ran], None] = lambda _ran: None,
    ) -> None:
        self._jobs = jobs
        self._runs = runs
        self._run = run
        self._clock = clock or WallClock()
        self._tell = tell
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._running: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()
        for job in jobs:
            self._meet(job)

    def _meet(self, job: Job) -> None:
        last = self._runs.last(job.name)
        if last is None or last.cron != job.cron_text:
            self._runs.meet(job.name, job.cron_text, self._clock.now())

    def stop(self) -> None:
        """Begin nothing any more; what runs comes to its end."""
        self._stopping.set()
        self._wake.set()

    def once(self) -> None:
        """Run what is due now, each job once, and wait for it."""
        self._start_due()
        self._join()

    def forever(self) -> None:
        """Until told to stop."""
        while not self._stopping.is_set():
            self._wake.clear()
            self._start_due()
            wait = min(self._next_due() - self._clock.now(), _LONGEST_WAIT_S)
            self._clock.wait(self._wake, max(wait, 0.0))
        self._join()

    def _start_due(self) -> None:
        now = self._clock.now()
        for job in self._jobs:
            if job.name in self._running or self._stopping.is_set():
                continue
            due = self._due(job)
            if due is not None and due <= now:
                self._start(job, due)

    def _due(self, job: Job) -> float | None:
        """When a job is to run next; None: never again."""
        last = self._runs.last(job.name)
        assert last is not None
        if last.cut_short and last.due is not None:
            if last.attempts < _ATTEMPTS:
                return last.due
            self._runs.ended(job.name, self._clock.now(), ok=False, error=_CUT_SHORT)
            outcome = Outcome(ok=False, composition_id="", error=_CUT_SHORT)
            run_id = run_id_of(job.name, last.due)
            self._tell(Ran(job=job, due=last.due, run_id=run_id, outcome=outcome))
            return next_due(job.cron, self._clock.now())
        return next_due(job.cron, last.handled)

    def _next_due(self) -> float:
        idle = [job for job in self._jobs if job.name not in self._running]
        moments = [due for job in idle if (due := self._due(job)) is not None]
        return min(moments, default=float("inf"))

    def _start(self, job: Job, due: float) -> None:
        run_id = run_id_of(job.name, due)
        self._runs.began(job.name, due, self._clock.now(), run_id)
        thread = threading.Thread(target=self._work, args=(job, due, run_id), daemon=True)
        with self._lock:
            self._running[job.name] = thread
        thread.start()

    def _work(self, job: Job, due: float, run_id: str) -> None:
        try:
            crashpoint("schedule.run", job.name)
            outcome = self._run(job, run_id)
            self._runs.ended(job.name, self._clock.now(), ok=outcome.ok, error=outcome.error)
            self._tell(Ran(job=job, due=due, run_id=run_id, outcome=outcome))
        finally:
            with self._lock:
                del self._running[job.name]
            self._wake.set()

    def _join(self) -> None:
        while True:
            with self._lock:
                threads = list(self._running.values())
            if not threads:
                return
            for thread in threads:
                thread.join()


def next_due(cron: Cron, after: float) -> float | None:
    found = cron.next_after(datetime.fromtimestamp(after, UTC))
    return found.timestamp() if found else None


def run_id_of(job: str, due: float) -> str:
    """A name for a run: the same after a crash, so that a durable one goes on."""
    name = re.sub(r"[^a-z0-9_]+", "-", job.lower()).strip("-")[:36] or "job"
    return f"{name}-{datetime.fromtimestamp(due, UTC):%Y%m%d-%H%M%S}"
