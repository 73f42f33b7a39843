"""Runs jobs when they are due, and records each run so that a restarted scheduler can go on."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from caloron.schedule.config import Job
from caloron.schedule.cron import Cron
from caloron.store.crash import crashpoint
from caloron.store.database import Database, load_statements, migrations_in

#: The machine's clock may be set and the machine may sleep, so no wait is longer than this.
_MAX_WAIT_S = 20.0
_MAX_ATTEMPTS = 2
_INTERRUPTED = f"it was cut short {_MAX_ATTEMPTS} times"
_HERE = Path(__file__).parent
_SQL = load_statements(_HERE / "sql" / "schedule.sql")


class LastRun(msgspec.Struct, frozen=True, kw_only=True):
    """The last run of a job; the next one is the first match of `cron` after `handled`."""

    job: str
    cron: str
    handled: float
    due: float | None = None
    began: float | None = None
    ended: float | None = None
    attempts: int = 0
    run_id: str = ""
    ok: bool | None = None
    error: str = ""

    @property
    def interrupted(self) -> bool:
        return self.began is not None and self.ended is None


class RunStore:
    """The last run of each job, in one small database per schedule file."""

    def __init__(self, folder: Path, config: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        digest = hashlib.sha256(os.fsencode(config.resolve())).hexdigest()
        name = f"{config.stem[:40]}-{digest[:16]}"
        self.lock = folder / f"{name}.lock"
        self._database = Database(
            folder / f"{name}.sqlite", migrations_in(_HERE / "migrations", "schedule")
        )

    def close(self) -> None:
        self._database.close()

    def last(self, job: str) -> LastRun | None:
        row = self._database.row(_SQL["last"], {"job": job})
        if row is None:
            return None
        fields = {name: row[name] for name in LastRun.__struct_fields__}
        return LastRun(**fields | {"ok": None if row["ok"] is None else bool(row["ok"])})

    def register(self, job: str, cron: str, now: float) -> None:
        """Record a job that is new, or whose expression changed; nothing of the past is due."""
        self._write("register", {"job": job, "cron": cron, "now": now})

    def start(self, job: str, due: float, now: float, run_id: str) -> None:
        self._write("start", {"job": job, "due": due, "now": now, "run_id": run_id})

    def finish(self, job: str, now: float, *, ok: bool, error: str) -> None:
        self._write("finish", {"job": job, "now": now, "ok": ok, "error": error})

    def _write(self, name: str, values: dict[str, object]) -> None:
        with self._database.transaction(f"schedule.{name}") as connection:
            connection.execute(_SQL[name], values)


class Clock(Protocol):
    """The time, and a wait that a test can shorten."""

    def now(self) -> float: ...

    def wait(self, wake: threading.Event, seconds: float) -> None:
        """Return when `wake` is set or the time is over."""
        ...


class WallClock:
    def now(self) -> float:
        return time.time()

    def wait(self, wake: threading.Event, seconds: float) -> None:
        wake.wait(seconds)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    ok: bool
    composition_id: str
    output: Any = None
    error: str = ""

    def body(self, job: str) -> dict[str, Any]:
        """Return the body of the webhook's request."""
        body = {"ok": self.ok, "job": job, "composition_id": self.composition_id}
        body["output"] = self.output if self.ok else None
        return body if self.ok else body | {"error": self.error}


class FinishedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that ended, for listeners."""

    job: Job
    due: float
    run_id: str
    outcome: Outcome


@dataclass
class Scheduler:
    """A loop over the jobs of one schedule, with a thread for each run."""

    jobs: tuple[Job, ...]
    runs: RunStore
    run: Callable[[Job, str], Outcome]
    _: KW_ONLY
    clock: Clock = field(default_factory=WallClock)
    finished: Callable[[FinishedRun], None] = lambda _run: None

    def __post_init__(self) -> None:
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._running: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()
        for job in self.jobs:
            last = self.runs.last(job.name)
            if last is None or last.cron != job.cron:
                self.runs.register(job.name, job.cron, self.clock.now())

    def stop(self) -> None:
        """Start no further run; those that run come to their end."""
        self._stopping.set()
        self._wake.set()

    def once(self) -> None:
        """Run the jobs that are due now, each once, and wait for them."""
        self._start_due()
        self._join()

    def forever(self) -> None:
        """Run until `stop` is called."""
        while not self._stopping.is_set():
            self._wake.clear()
            self._start_due()
            wait = min(self._next_due() - self.clock.now(), _MAX_WAIT_S)
            self.clock.wait(self._wake, max(wait, 0.0))
        self._join()

    def _start_due(self) -> None:
        now = self.clock.now()
        for job in self.jobs:
            if job.name in self._running or self._stopping.is_set():
                continue
            due = self._due(job)
            if due is not None and due <= now:
                self._start(job, due)

    def _due(self, job: Job) -> float | None:
        """Return when a job runs next; None if never again."""
        last = self.runs.last(job.name)
        assert last is not None
        if last.interrupted and last.due is not None:
            if last.attempts < _MAX_ATTEMPTS:
                return last.due
            outcome = Outcome(ok=False, composition_id="", error=_INTERRUPTED)
            self._finish(job, last.due, run_id_of(job.name, last.due), outcome)
            return next_due(job.times, self.clock.now())
        return next_due(job.times, last.handled)

    def _next_due(self) -> float:
        idle = [job for job in self.jobs if job.name not in self._running]
        moments = [due for job in idle if (due := self._due(job)) is not None]
        return min(moments, default=float("inf"))

    def _start(self, job: Job, due: float) -> None:
        run_id = run_id_of(job.name, due)
        self.runs.start(job.name, due, self.clock.now(), run_id)
        thread = threading.Thread(target=self._work, args=(job, due, run_id), daemon=True)
        with self._lock:
            self._running[job.name] = thread
        thread.start()

    def _work(self, job: Job, due: float, run_id: str) -> None:
        try:
            crashpoint("schedule.run", job.name)
            self._finish(job, due, run_id, self.run(job, run_id))
        finally:
            with self._lock:
                del self._running[job.name]
            self._wake.set()

    def _finish(self, job: Job, due: float, run_id: str, outcome: Outcome) -> None:
        self.runs.finish(job.name, self.clock.now(), ok=outcome.ok, error=outcome.error)
        self.finished(FinishedRun(job=job, due=due, run_id=run_id, outcome=outcome))

    def _join(self) -> None:
        while True:
            with self._lock:
                threads = list(self._running.values())
            if not threads:
                return
            for thread in threads:
                thread.join()


def next_due(cron: Cron, after: float) -> float | None:
    due = cron.next_after(datetime.fromtimestamp(after, UTC))
    return due.timestamp() if due else None


def run_id_of(job: str, due: float) -> str:
    """Return the id of a run: the same after a crash, so that a durable run goes on."""
    name = re.sub(r"[^a-z0-9_]+", "-", job.lower()).strip("-")[:36] or "job"
    return f"{name}-{datetime.fromtimestamp(due, UTC):%Y%m%d-%H%M%S}"
