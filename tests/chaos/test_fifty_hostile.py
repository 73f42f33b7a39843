"""Fifty hostile agents in a row: no process is left, nothing leaks, and honest work is merged."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.hostile import HABITS, LIMITS, assert_each_ended_as_it_must, response_of
from tests.support.home import Answer, Home, task, writes

_HONEST_BETWEEN = 10
#: Far beyond the usual duration; only a sprint that hangs takes so long.
_PATIENCE_S = 900.0


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home.init().set(parallel=2, **LIMITS)
    home.close()


class _Census:
    """Counts the handles, threads and memory of a running engine again and again."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.handles: list[int] = []
        self.threads: list[int] = []
        self.resident_mb: list[float] = []
        threading.Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        proc = Path(f"/proc/{self._pid}")
        while True:
            try:
                self.handles.append(len(list((proc / "fd").iterdir())))
                self.threads.append(len(list((proc / "task").iterdir())))
                status = (proc / "status").read_text()
                self.resident_mb.append(int(status.split("VmRSS:")[1].split()[0]) / 1024)
            except (OSError, IndexError):
                return
            time.sleep(0.2)


def _mounts() -> set[str]:
    """Mount points of this machine, without those of other tests that come and go."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {line.split()[4] for line in lines}


def _scratch() -> set[str]:
    """Folders of proxies and unfinished files; what is kept for all agents is not counted."""
    folder = Path(f"/tmp/caloron-{os.getuid()}")
    entries = folder.iterdir() if folder.exists() else ()
    return {path.name for path in entries if path.name.startswith(("net-", ".new-"))}


def _ours_in_tmp() -> set[str]:
    return {p.name for p in Path("/tmp").iterdir() if p.name.startswith("caloron-check-")}


@pytest.mark.long
def test_fifty_hostile_agents_leave_no_process_and_honest_work_is_merged(
    home: Home,
) -> None:
    assert len(HABITS) >= 50
    names = list(HABITS)
    honest = [f"honest-{n}" for n in range(len(names) // _HONEST_BETWEEN)]
    trap = str(home.root / "trapped")
    home.script(
        *(response_of(name, HABITS[name], trap) for name in names),
        *(writes(name) for name in (*honest, "honest")),
    )
    before = _mounts(), _scratch(), _ours_in_tmp()
    # An honest task after each ten hostile tasks, in the order in which they are begun.
    tasks = [task(name) for name in names]
    for number, name in enumerate(honest):
        tasks.insert((number + 1) * (_HONEST_BETWEEN + 1) - 1, task(name))
    running = home.start_sprint(*tasks, task("honest"))
    census = _Census(running.pid)
    out, err = running.process.communicate(timeout=_PATIENCE_S)
    answer = Answer(running.process.returncode, out, err)

    assert answer.code == 10, answer
    assert {answer.statuses[name] for name in honest} == {"Done"}
    for name in honest:
        assert home.git("cat-file", "blob", f"main:{name}.txt") == f"{name}\n".encode()
    assert_each_ended_as_it_must(home, answer, names, also=[f"{name}.txt" for name in honest])

    _assert_steady(census)
    assert (_mounts() - before[0], _ours_in_tmp() - before[2]) == (set(), set())
    assert _scratch() - before[1] == set()
    runs = home.project() / "runs"
    assert [str(path) for path in runs.rglob("home") if path.is_dir()] == []
    kept = [str(path) for path in runs.rglob("workspace")]
    # Only work that could not be taken is kept for a person.
    refused = [name for name in names if HABITS[name].refused]
    assert not [path for path in kept if not any(f"/{name}/" in path for name in refused)]
    assert list((home.project() / "pool").glob("*")) == []


def _assert_steady(census: _Census) -> None:
    """The second half of the sprint needs no more than the first."""
    for counted in (census.handles, census.threads, census.resident_mb):
        half = len(counted) // 2
        assert half > 10
        assert max(counted[half:]) <= max(counted[:half]) * 1.3 + 10, counted[:: len(counted) // 40]
