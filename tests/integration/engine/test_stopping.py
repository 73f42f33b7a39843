"""Every end of an engine has a reason, closes every part and releases work without loss."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from caloron.agents.supervise import launch
from caloron.domain.model.effects import CreateIssue
from caloron.domain.model.facts import RunInterrupted
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.usage import Usage
from caloron.engine import loop as engine_module
from caloron.engine import session as session_module
from caloron.engine.graphs.tick_graph import GRAPH, tick_graph
from caloron.engine.loop import SleepDetector
from caloron.engine.session import Choices, Session, exclusive
from caloron.engine.traces import RunTraces
from caloron.errors import ForgeError, ForgeUnavailable, StoreError
from caloron.forge.local.forge import LocalForge
from caloron.git.command import GitError
from caloron.graph.runtime.protocols import Trace
from caloron.ledger.projects import load_project
from caloron.schedule.config import Job, Schedule
from caloron.schedule.cron import parse_cron
from caloron.schedule.jobs import ScheduledGraphs
from caloron.stages.compositions import composition
from caloron.store.lock import holder
from tests.integration.engine.conftest import ITEM, Engine, ScriptedForge
from tests.integration.engine.test_plan_on_forge import ScriptedListener, no_terminal
from tests.support.home import Home, writes
from tests.support.wait import wait_for


@pytest.fixture
def home(home: Home) -> Home:
    return home.script(writes("a"))


@contextmanager
def begun(home: Home) -> Iterator[engine_module.Engine]:
    """A sprint of one task, and the engine that would run it."""
    plan = (PlannedTask(id="a", title="First", agent_prompt="Do it"),)
    with exclusive(load_project("demo")) as session:
        choices = Choices(unsandboxed=True)
        name = session.begin("a goal", plan, choices, parallel=2, ask=False)
        yield session.engine(name, ScriptedListener(no_terminal))


def raising(error: Exception) -> Any:
    """Return a function that raises an error, whatever its arguments."""

    def raise_it(*_: object, **__: object) -> Any:
        raise error

    return raise_it


unreachable = raising(ForgeUnavailable("the forge did not answer", hint="try again"))


def test_a_failed_first_poll_is_the_reported_reason(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begun(home) as engine:
        monkeypatch.setattr(LocalForge, "poll", unreachable)
        with pytest.raises(ForgeUnavailable, match="did not answer"):
            engine.run()
        assert engine.wake._fd is None
        assert engine.effects._pool._shutdown
        assert all(each.poll() is not None for each in engine.runtime.trash._deletions)


def test_a_part_that_fails_to_close_neither_keeps_others_open_nor_hides_the_reason(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = raising(RuntimeError("it does not close"))
    with begun(home) as engine, monkeypatch.context() as patched:
        patched.setattr(engine.poller, "stop", broken)
        patched.setattr(engine.workers, "stop", broken)
        patched.setattr(LocalForge, "poll", unreachable)
        with pytest.raises(ForgeUnavailable):
            engine.run()
        assert engine.wake._fd is None
    with begun(home) as engine:
        monkeypatch.setattr(engine.runtime.pool, "close", broken)
        engine.request_stop()
        with pytest.raises(RuntimeError, match="does not close"):
            engine.run()
        assert engine.wake._fd is None


def test_a_session_whose_forge_cannot_be_opened_leaves_nothing_open(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = load_project("demo")
    with monkeypatch.context() as patched:
        patched.setattr(session_module, "forge_of_session", unreachable)
        before = _open_files(project.ledger)
        with pytest.raises(ForgeUnavailable):
            Session(project)
        assert _open_files(project.ledger) == before
    monkeypatch.setattr(LocalForge, "close", unreachable)
    session = Session(project)
    with pytest.raises(ForgeUnavailable):
        session.close()
    assert holder(project.engine_lock) is None, "the project is free again"


def _open_files(path: Path) -> int:
    handles = Path("/proc/self/fd").iterdir()
    return sum(os.path.realpath(handle).startswith(str(path)) for handle in handles)


def test_an_effect_waits_if_the_forge_became_unreachable_during_the_tick(
    engine: Engine,
) -> None:
    forge = ScriptedForge(find_issue=None, poll=None)
    poller = engine.poller_of(forge)
    effects = engine.effects(forge, poller)
    engine.plan(CreateIssue(task="a", key="issue/a", title="t", body="b", labels=()))
    epoch = poller.epoch
    # Another effect loses its answer during the tick.
    poller.report_unreachable()
    effects.dispatch(epoch)
    # A poll alone does not help before a tick has decided on it.
    poller._made_good = poller._losses
    effects.dispatch(epoch)
    effects.close()
    assert forge.calls == []


# Time


class Clocks:
    """The clocks of a machine; `sleep` stops only the clock that excludes suspended time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running, self.asleep, self.wall = 1000.0, 0.0, 5000.0
        monkeypatch.setattr(time, "clock_gettime", self._gettime)
        monkeypatch.setattr(time, "time", lambda: self.wall)

    def _gettime(self, clock: int) -> float:
        return self.running + (self.asleep if clock == time.CLOCK_BOOTTIME else 0.0)

    def run(self, seconds: float) -> None:
        self.running, self.wall = self.running + seconds, self.wall + seconds

    def sleep(self, seconds: float) -> None:
        self.asleep, self.wall = self.asleep + seconds, self.wall + seconds


def test_a_machine_that_slept_gets_one_lease_of_grace(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks(monkeypatch)
    grace = SleepDetector(engine.ledger, 30.0, 5.0)

    def after(seconds: float, pass_time: Callable[[float], None] = clocks.run) -> bool:
        pass_time(seconds)
        return grace.in_grace()

    assert [after(s) for s in (0, 5, 34)] == [False, False, False]
    assert after(40, clocks.sleep)
    assert [after(s) for s in (10, 15, 10)] == [True, True, False]
    # Stands for a paused process or container.
    assert [after(s) for s in (36, 25, 10)] == [True, True, False]
    # Between two processes: the agents of the earlier one slept too.
    clocks.sleep(100)
    grace = SleepDetector(engine.ledger, 30.0, 5.0)
    assert [after(s) for s in (1, 20)] == [True, True]
    grace = SleepDetector(engine.ledger, 30.0, 5.0)
    assert [after(s) for s in (1, 20)] == [True, False]


def test_a_changed_clock_is_no_sleep(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)
    grace = SleepDetector(engine.ledger, 30.0, 5.0)
    grace_periods = []
    for change in (0.0, 3600.0, -7200.0, 3600.0):
        clocks.wall += change
        clocks.run(5)
        grace_periods.append(grace.in_grace())
    assert grace_periods == [False, False, False, False]


# Work


def test_work_that_is_prepared_after_a_stop_is_released(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = engine.workers()
    made: list[str] = []

    def assign(*_: Any) -> Any:
        made.append("a workspace")
        # Ctrl-C during the creation of the workspace.
        workers.stopping.set()

    monkeypatch.setattr(workers.preparer, "assign", assign)
    engine.work(workers)
    workers.stop()
    assert made == ["a workspace"]
    assert engine.signal.errors == []
    assert not (engine.runs.of(ITEM, 1) / "spec.json").exists(), "an agent was started"
    assert engine.status() == "pending"


def test_a_pause_after_losses_ends_with_a_stop(engine: Engine) -> None:
    workers = engine.workers()
    workers._lost[ITEM] = 30
    engine.plan_work()
    workers.dispatch(4)
    began = time.monotonic()
    workers.stop()
    # Without the stop the pause takes 30 s; even a loaded machine stops much faster.
    assert time.monotonic() - began < 20
    assert engine.status() == "pending"
    assert workers.idle


def test_an_agent_with_a_lost_lease_is_stopped_by_one_thread(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Path] = []
    go_on = threading.Event()

    def slow(run_dir: Path) -> None:
        calls.append(run_dir)
        go_on.wait(60)

    monkeypatch.setattr(launch, "stop", slow)
    workers = engine.workers()
    workers._active[ITEM, 1] = threading.current_thread()
    for _ in range(5):
        workers.reconcile(grace=False)
    wait_for(lambda: bool(calls), "the agent is stopped")
    go_on.set()
    assert len(calls) == 1


def test_an_agent_that_cannot_be_stopped_is_reported(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "stop", raising(OSError("no permission")))
    workers = engine.workers()
    workers._active[ITEM, 1] = threading.current_thread()
    workers.reconcile(grace=False)
    wait_for(lambda: bool(engine.signal.errors), "the error is reported")


def test_a_run_whose_lease_is_lost_at_its_end_is_still_paid(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = engine.start_work()
    engine.shim(claimed, "sh", "-c", "echo done")
    engine.process.wait()
    workers = engine.workers()
    cost = RunInterrupted(item=ITEM, task="a", token=claimed.token, usage=Usage(usd=2.5))
    ended = workers.collector.ended

    def slowly(*args: Any) -> Any:
        fact = ended(*args)
        # The lease is lost while the commits are collected.
        engine.queue.interrupt(ITEM, claimed.token, "its lease was not renewed")
        return fact

    monkeypatch.setattr(workers.collector, "ended", slowly)
    monkeypatch.setattr(workers.collector, "interrupted", lambda *_: cost)
    monkeypatch.setattr(workers.collector, "_take_commits", lambda *_: ("h", ()))
    workers.adopt()
    workers.wait()
    assert engine.signal.errors == []
    assert engine.facts() == (cost,)


def test_an_interruption_is_waited_for_without_reading_the_whole_sprint(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for item in (ITEM, f"{ITEM}x"):
        engine.plan_work(item)
    fact = RunInterrupted(item=ITEM, task="a", token=1, usage=Usage(usd=1.0))
    other = RunInterrupted(item=f"{ITEM}x", task="a", token=1, usage=Usage(usd=1.0))
    engine.ledger.append_facts(engine.sprint, [other])
    assert not engine.queue.interruption_waits(ITEM)
    engine.ledger.append_facts(engine.sprint, [fact])
    assert engine.queue.interruption_waits(ITEM)
    workers = engine.workers()
    loads: list[str] = []
    load = engine.ledger.load

    def counted(sprint: str) -> Any:
        loads.append(sprint)
        return load(sprint)

    monkeypatch.setattr(engine.ledger, "load", counted)
    waiting = threading.Thread(target=workers._await_earlier_attempts, args=(ITEM, 2))
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive()
    assert loads == []
    engine.ledger.db.rows("DELETE FROM inbox")
    waiting.join(60)
    assert not waiting.is_alive()


def test_agents_end_with_a_stop_also_if_the_ledger_cannot_be_written(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = engine.start_work()
    run_dir = engine.shim(claimed, "sleep", "600")
    wait_for((run_dir / "shim.json").exists, "the shim runs")
    workers = engine.workers()
    full = StoreError("database or disk is full")
    monkeypatch.setattr(engine.queue, "interrupt", raising(full))
    workers.stop()
    engine.process.wait(60)
    assert not launch.is_alive(run_dir)
    assert engine.signal.errors


# A full disk

FULL = "git push failed (1): error: file write error: No space left on device"


@pytest.mark.parametrize("error", [ForgeUnavailable(FULL), ForgeError(FULL)])
def test_an_effect_that_meets_a_full_disk_ends_the_sprint_and_blames_no_task(
    engine: Engine, error: Exception
) -> None:
    effects = engine.effects(ScriptedForge(find_issue=None, create_issue=error))
    engine.plan(CreateIssue(task="a", key="issue/a", title="t", body="b", labels=()))
    effects.dispatch()
    wait_for(lambda: effects.idle, "the effect was tried")
    effects.close()
    assert engine.signal.errors == [error], "no retry helps"
    assert engine.facts() == (), "the task has not failed"
    assert engine.entry().intended, "the effect is executed after a resume"


@pytest.mark.parametrize("error", [GitError(("checkout",), 128, FULL), ForgeUnavailable(FULL)])
def test_work_that_meets_a_full_disk_ends_the_sprint_and_blames_no_task(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    workers = engine.workers()
    monkeypatch.setattr(workers.preparer, "assign", raising(error))
    engine.work(workers)
    assert engine.signal.errors == [error]
    assert engine.facts() == ()


def test_a_failure_that_cannot_be_recorded_is_reported(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = engine.workers()
    unwritable = StoreError("ledger.sqlite: unable to open database file")
    failed = GitError(("checkout",), 128, "fatal: no")
    monkeypatch.setattr(workers.preparer, "assign", raising(failed))
    monkeypatch.setattr(engine.queue, "settle", raising(unwritable))
    engine.work(workers)
    assert engine.signal.errors == [unwritable]


def test_a_poll_that_cannot_be_recorded_ends_the_sprint(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    poller = engine.poller_of(ScriptedForge(poll=ForgeUnavailable("no answer")), 0.01)
    unwritable = StoreError("ledger.sqlite: unable to open database file")
    monkeypatch.setattr(engine.ledger, "store_outage", raising(unwritable))
    poller.start()
    wait_for(lambda: bool(engine.signal.errors), "the error is reported")
    poller.stop()
    assert engine.signal.errors == [unwritable]


# Traces and schedules


def a_trace() -> Trace:
    at = "2026-01-01T00:00:00Z"
    return Trace(composition_id="c", started_at=at, duration_ms=1, stages=(), failed=False)


def test_a_trace_that_another_engine_removes_ends_no_sprint(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for number in range(500):
        (folder / f"run-{number}.json").write_text("{}")
    # Stands for a file that disappears between the listing and the read.
    (folder / "gone.json").symlink_to(tmp_path / "nothing")
    trace = a_trace()
    RunTraces(folder).keep("mine", tick_graph(), trace)
    assert len(list(folder.glob("*.json"))) == 500
    assert (folder / "mine.json").exists()


def test_a_rewritten_trace_reads_no_other_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = RunTraces(tmp_path)
    trace = a_trace()
    traces.keep("tick-shop-1", tick_graph(), trace)
    monkeypatch.setattr(Path, "glob", unreachable)
    traces.keep("tick-shop-1", tick_graph(), trace)


@pytest.mark.parametrize("tick_input", [None, [], "shop-1", {}, {"sprint_id": 3}])
def test_a_scheduled_tick_without_a_sprint_fails_with_a_reason(
    tmp_path: Path, tick_input: Any
) -> None:
    graph = tmp_path / "tick.json"
    shipped = composition(GRAPH)
    assert isinstance(shipped, bytes)
    graph.write_bytes(shipped)
    every_minute = "* * * * *"
    job = Job(name="tick", cron=every_minute, times=parse_cron(every_minute), graph="tick.json",
              file=graph, input=tick_input)  # fmt: skip
    schedule = Schedule(path=graph, jobs=(job,), stages=())
    jobs = ScheduledGraphs(tmp_path, schedule, unsandboxed=True, note=lambda _line: None)
    outcome = jobs.run(job, "run-1")
    assert not outcome.ok
    assert "names no sprint" in outcome.error
    assert json.dumps(outcome.body("tick"))
