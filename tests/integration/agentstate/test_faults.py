"""Failed writes lose no state, name the file in the message, and can be repeated."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from caloron.agentstate.instance import AgentInstance
from caloron.cycles.state import CycleState, apply
from caloron.cycles.storage import Log
from caloron.errors import StoreError
from tests.integration.agentstate.cycles.conftest import UNKNOWN, Agent
from tests.support.claimers import PROCESSES

FAULTS = {
    "no space": errno.ENOSPC,
    "a broken disk": errno.EIO,
    "a read-only disk": errno.EROFS,
    "another's file": errno.EACCES,
}
UNPRIVILEGED_UID = 65534


def refusal(call: Callable[[], Any]) -> StoreError | None:
    """Return the error of a call, or None if it succeeds."""
    try:
        call()
    except StoreError as error:
        return error
    return None


class FailingOnce:
    """Counts the system calls that write, and fails the k-th call."""

    def __init__(self, patch: pytest.MonkeyPatch, number: int, code: int) -> None:
        self.left = number
        self._code = code
        self.failed = ""
        for name in ("write", "fsync", "open"):
            patch.setattr(os, name, self._wrapped(name, getattr(os, name)))
        for name in ("replace", "open"):
            patch.setattr(Path, name, self._wrapped(f"Path.{name}", getattr(Path, name)))

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_reading(name, args):
                return function(*args, **kwargs)
            self.left -= 1
            if self.left == 0:
                self.failed = name
                raise OSError(self._code, os.strerror(self._code))
            return function(*args, **kwargs)

        return call

    @staticmethod
    def _is_reading(name: str, args: tuple[Any, ...]) -> bool:
        if name == "Path.open":
            return "w" not in (args[1] if len(args) > 1 else "r")
        return name == "open" and not args[1] & (os.O_WRONLY | os.O_RDWR)


def steps_of(agent: Agent) -> list[Callable[[], Any]]:
    return [
        lambda: agent.cycles.begin(holder=UNKNOWN, work="issue 4"),
        lambda: agent.cycles.act("pushed", artefact="branch x"),
        agent.cycles.beat,
        lambda: agent.cycles.end(next_target="go on"),
        lambda: agent.cycles.request_stop("wait"),
    ]


def state_from_log(agent: Agent) -> CycleState:
    state = CycleState("allegro")
    for entry in Log(agent.places.log).entries():
        state = apply(state, entry)
    return state


@pytest.mark.parametrize("code", FAULTS.values(), ids=FAULTS)
def test_each_write_sync_and_rename_of_a_cycle_may_fail(tmp_path: Path, code: int) -> None:
    failed: set[str] = set()
    for number in range(len(steps_of(Agent(tmp_path)))):
        for k in range(1, 30):
            agent = Agent(tmp_path / f"{number}-{k}")
            steps = steps_of(agent)
            for step in steps[:number]:
                step()
            before = agent.cycles.load().state
            with pytest.MonkeyPatch.context() as patch:
                disk = FailingOnce(patch, k, code)
                refused = _was_refused(steps[number], agent)
            if not disk.failed:
                assert not refused
                break
            failed.add(disk.failed)
            state = agent.cycles.load().state
            # A step that was not refused has its effect.
            assert refused or state == state_from_log(agent) != before
            assert state == before or state == state_from_log(agent), (number, k, disk.failed)
            _goes_on(agent, before, state)
        else:
            raise AssertionError("more calls than were counted")
    assert failed == {"write", "fsync", "open", "Path.replace", "Path.open"}


def _was_refused(step: Callable[[], Any], agent: Agent) -> bool:
    """Return whether a step failed, and check that the message names a file of this agent."""
    error = refusal(step)
    if error is None:
        return False
    assert str(agent.places.state.parents[1]) in str(error)
    assert error.hint
    return True


def _goes_on(agent: Agent, before: CycleState, state: CycleState) -> None:
    """Check that the agent has its whole state after the disk works again."""
    agent.cycles.clear_stop()
    agent.cycles.recover(force=True)
    _, report = agent.cycles.begin(holder=UNKNOWN)
    assert report.cycle_number == state.cycle_number + 1
    assert report.work_in_progress == state.work_in_progress
    assert report.next_target in (before.next_target, "go on")


def _in_a_process(work: Callable[..., None], *args: Any) -> None:
    worker = PROCESSES.Process(target=work, args=args)
    worker.start()
    worker.join()
    assert worker.exitcode == 0


def _act_on_a_full_disk(folder: Path, more: int) -> None:
    agent = Agent(folder)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = max(agent.places.log.stat().st_size, 1) + more
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    error = refusal(lambda: agent.cycles.act("x" * 500))
    assert error is not None
    assert str(agent.places.log) in str(error)


@pytest.mark.parametrize("more", [0, 1, 100])
def test_a_full_disk_leaves_the_log_unchanged(tmp_path: Path, more: int) -> None:
    agent = Agent(tmp_path)
    agent.whole_cycle()
    agent.cycles.begin(holder=UNKNOWN)
    before = agent.places.log.read_bytes(), agent.cycles.load()
    _in_a_process(_act_on_a_full_disk, tmp_path, more)
    assert (agent.places.log.read_bytes(), agent.cycles.load()) == before
    assert agent.cycles.act("there is room again").steps == 1


def _use_a_full_disk(where: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with AgentInstance(where) as home:
        home.work_items.enqueue("first", "x", {})
        size = max(file.stat().st_size for file in where.iterdir())
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        large = {"text": "x" * 4000}
        tries = [partial(home.work_items.enqueue, f"i{n}", "x", large) for n in range(200)]
        refusals = [error for error in map(refusal, tries) if error is not None]
        assert refusals
        assert all(str(where / "state.sqlite") in str(error) for error in refusals)


def test_a_full_disk_refuses_an_errand_and_names_the_file(where: Path) -> None:
    _in_a_process(_use_a_full_disk, where)
    with AgentInstance(where) as home:
        assert home.db.rows("PRAGMA integrity_check")[0][0] == "ok"
        items = {row["id"] for row in home.db.rows("SELECT id FROM work_items")}
        result = {row["work_item_id"] for row in home.db.rows("SELECT work_item_id FROM events")}
        assert items == result
        assert "first" in items
        assert home.work_items.enqueue("room again", "x", {}).inserted


def _as_unprivileged_user(where: Path, folder: Path) -> None:
    """Check the refusals for a user who may read all files and write none."""
    if os.getuid() == 0:
        os.setgid(UNPRIVILEGED_UID)
        os.setuid(UNPRIVILEGED_UID)
    agent = Agent(folder)
    assert agent.cycles.report().last_cycle == 1
    for act, file in (
        (lambda: agent.cycles.begin(holder=UNKNOWN), agent.places.lock),
        (lambda: agent.cycles.request_stop("x"), agent.places.stop),
        (lambda: AgentInstance(where).work_items.enqueue("b", "x", {}), where / "state.sqlite"),
        (lambda: Log(agent.places.log).append({"at": "", "cycle": 1, "event": "x"}),
         agent.places.log),
    ):  # fmt: skip
        error = refusal(act)
        assert error is not None, file
        assert str(file) in str(error), str(error)
        assert error.hint


def test_files_of_another_user_are_named_and_stay_unchanged(where: Path, tmp_path: Path) -> None:
    agent = Agent(tmp_path / "cycles")
    agent.whole_cycle()
    with AgentInstance(where) as home:
        home.work_items.enqueue("a", "x", {})
    readable = [tmp_path, *tmp_path.parents][:4]
    before = {path: path.stat().st_mode for path in readable}
    for path in readable:
        path.chmod(path.stat().st_mode | 0o055)
    for path in tmp_path.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        contents = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        _in_a_process(_as_unprivileged_user, where, tmp_path / "cycles")
        assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == contents
    finally:
        for path in tmp_path.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        for path, mode in before.items():
            path.chmod(mode)
