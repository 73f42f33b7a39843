"""The scheduler on a manual clock: due times, single runs and recovery after a crash."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from caloron.schedule.config import Job
from caloron.schedule.cron import parse_cron
from caloron.schedule.scheduler import LastRun, Outcome, RunStore, Scheduler

START = datetime(2026, 11, 16, 12, 0, 0, tzinfo=UTC).timestamp()


class HandClock:
    """A clock that advances when the scheduler waits."""

    def __init__(self, until: float) -> None:
        self.at, self.until = START, START + until
        self.over: Callable[[], None] = lambda: None

    def now(self) -> float:
        return self.at

    def wait(self, wake: threading.Event, seconds: float) -> None:
        # A short real wait lets the started jobs run; the clock does not count it.
        if not wake.wait(0.02):
            self.at += seconds
        if self.at > self.until:
            self.over()


class World:
    """Jobs, a real database, and the list of runs with their times."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran: list[tuple[str, str]] = []
        self.does: Callable[[Job], Outcome] = lambda _job: Outcome(ok=True, composition_id="c")

    def runs(self) -> RunStore:
        return RunStore(self.folder, self.folder / "scheduler.json")

    def live(self, seconds: float, *crons: str, at: float = 0.0) -> None:
        """Run a scheduler for some seconds, from a time on."""
        jobs = tuple(_job(f"job-{n}", cron) for n, cron in enumerate(crons))
        clock = self.clock = HandClock(at + seconds)
        clock.at += at
        runs = self.runs()

        def run(job: Job, run_id: str) -> Outcome:
            self.ran.append((job.name, run_id[-6:]))
            return self.does(job)

        scheduler = Scheduler(jobs, runs, run, clock=clock)
        clock.over = scheduler.stop
        scheduler.forever()
        runs.close()

    def last(self) -> LastRun:
        runs = self.runs()
        last = runs.last("job-0")
        runs.close()
        assert last is not None
        return last


def _job(name: str, cron: str) -> Job:
    return Job(name=name, cron=cron, times=parse_cron(cron), graph="g.json", file=Path("g.json"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_jobs_run_at_their_times(world: World) -> None:
    world.live(185, "* * * * *", "30 * * * * *")
    assert sorted(world.ran) == [
        ("job-0", "120100"), ("job-0", "120200"), ("job-0", "120300"),
        ("job-1", "120030"), ("job-1", "120130"), ("job-1", "120230"),
    ]  # fmt: skip


def test_a_new_job_is_not_due_for_the_past(world: World) -> None:
    world.live(30, "0 0 * * *")
    assert world.ran == []


def test_missed_times_are_made_up_for_by_one_run(world: World) -> None:
    world.live(65, "* * * * *")
    world.live(30, "* * * * *", at=3600)
    world.live(90, "* * * * *", at=3640)
    assert [moment for _, moment in world.ran] == ["120100", "120200", "130100", "130200"]


def test_a_job_with_a_new_schedule_forgets_its_missed_times(world: World) -> None:
    world.live(65, "* * * * *")
    world.live(30, "0 13 * * *", at=7200)
    assert len(world.ran) == 1


def test_a_job_never_overlaps_with_itself_and_skips_the_times_it_missed(world: World) -> None:
    at_work = threading.Semaphore(1)
    overlaps: list[str] = []

    def slow(job: Job) -> Outcome:
        if not at_work.acquire(blocking=False):
            overlaps.append(job.name)
        # The first run takes ten minutes of the scheduler's time.
        while len(world.ran) == 1 and world.clock.now() < START + 660:
            threading.Event().wait(0.005)
        at_work.release()
        return Outcome(ok=True, composition_id="c")

    world.does = slow
    world.live(800, "* * * * *")
    assert overlaps == []
    moments = [moment for _, moment in world.ran]
    assert moments[0] == "120100"
    assert all(moment >= "121100" for moment in moments[1:])


def test_a_slow_job_delays_no_other_job(world: World) -> None:
    let_go = threading.Event()

    def does(job: Job) -> Outcome:
        if job.name == "job-0":
            let_go.wait(20)
        elif len([name for name, _ in world.ran if name == "job-1"]) == 3:
            let_go.set()
        return Outcome(ok=True, composition_id="c")

    world.does = does
    world.live(250, "* * * * *", "* * * * *")
    assert let_go.is_set()
    assert len([name for name, _ in world.ran if name == "job-1"]) >= 3


def test_a_failure_is_recorded_and_the_job_runs_again_at_its_next_time(world: World) -> None:
    world.does = lambda _job: Outcome(ok=False, composition_id="c", error="no")
    world.live(125, "* * * * *")
    assert len(world.ran) == 2
    assert (world.last().ok, world.last().error) == (False, "no")


def test_an_interrupted_run_is_repeated_once(world: World) -> None:
    def crash() -> Any:
        runs = world.runs()
        runs.start("job-0", START + 60, START + 60, "job-0-20261116-120100")
        runs.close()

    world.live(10, "0 13 * * *")
    crash()
    world.live(10, "0 13 * * *", at=100)
    assert [moment for _, moment in world.ran] == ["120100"]
    crash()
    crash()
    world.live(10, "0 13 * * *", at=200)
    assert len(world.ran) == 1
    assert world.last().error == "it was cut short 2 times"
