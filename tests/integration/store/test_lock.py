"""Locks on a file, and proof that a process has ended."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from caloron.errors import InUse, StoreError
from caloron.store import lock
from caloron.store.lock import file_lock, this_process


def test_an_ended_process_is_reported_as_gone() -> None:
    child = subprocess.Popen(["sleep", "60"])
    holder = this_process(child.pid)
    assert holder.is_gone is False
    child.kill()
    # The process is dead, although its parent has not reaped it yet.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert holder.is_gone is True
    child.wait()
    assert holder.is_gone is True


def test_a_process_with_a_reused_pid_is_another_process() -> None:
    assert this_process().is_gone is False
    assert this_process()._replace(started="1").is_gone is True
    assert this_process()._replace(boot="an earlier boot").is_gone is True


def test_the_state_of_a_process_on_another_host_is_unknown() -> None:
    assert this_process()._replace(host="elsewhere").is_gone is None
    assert this_process()._replace(namespace="pid:[1]").is_gone is None
    assert this_process()._replace(started="").is_gone is None


def test_one_thread_at_a_time_has_a_file_lock(tmp_path: Path) -> None:
    inside, most = [0], [0]

    def work() -> None:
        for _ in range(20):
            with file_lock(tmp_path / "lock"):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    with ThreadPoolExecutor(4) as threads:
        for worker in [threads.submit(work) for _ in range(4)]:
            worker.result()
    assert most == [1]


def test_a_file_lock_that_is_never_released_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_TIMEOUT_S", 0.05)
    with (
        file_lock(tmp_path / "lock"),
        pytest.raises(InUse, match="busy with"),
        file_lock(tmp_path / "lock"),
    ):
        pass


def test_a_lock_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file/lock"), file_lock(tmp_path / "file" / "lock"):
        pass
