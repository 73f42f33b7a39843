"""One engine per project, and every process can read which engine has the lock."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest

from caloron.cli.app import main
from caloron.errors import InUse
from caloron.store.lock import (
    ProcessIdentity,
    ProcessLock,
    boot_id,
    holder,
    single_instance,
    this_process,
)

HOLD = """
import sys, time
from pathlib import Path
from caloron.store.lock import ProcessLock
lock = ProcessLock(Path(sys.argv[1]))
lock.acquire("shop-3")
print("locked", flush=True)
time.sleep(600)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "shop" / "engine.lock"


@pytest.fixture
def other(path):
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, path],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_refusal_names_the_holder_and_how_to_stop_it(path, other):
    with pytest.raises(InUse) as refused:
        ProcessLock(path).acquire("shop-4")
    message = str(refused.value)
    assert f"process {other.pid}" in message
    assert socket.gethostname() in message
    assert "sprint shop-3" in message
    assert "since 20" in message
    assert refused.value.hint.endswith("caloron stop --project shop")
    assert refused.value.exit_code == 5


def test_reading_the_holder_does_not_disturb_it(path, other):
    seen = holder(path)
    assert seen is not None
    assert seen["pid"] == other.pid
    assert seen["boot_id"] == boot_id()
    assert seen["sprint"] == "shop-3"
    assert holder(path) == seen


def test_a_lock_ends_with_its_process(path, other):
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert json.loads(path.read_text())["pid"] == other.pid
    assert holder(path) is None
    ProcessLock(path).acquire("shop-4")


def test_a_lock_has_a_holder_only_while_it_is_taken(path):
    assert holder(path) is None
    with ProcessLock(path) as lock:
        lock.describe("shop-5")
        seen = holder(path)
        assert seen is not None
        assert seen["sprint"] == "shop-5"
    assert holder(path) is None


def test_a_child_does_not_inherit_the_lock(path):
    lock = ProcessLock(path)
    lock.acquire("shop-1")
    child = subprocess.Popen(["sleep", "600"], close_fds=False)
    try:
        lock.release()
        assert holder(path) is None
    finally:
        child.kill()
        child.wait()


def test_a_damaged_lock_file_still_refuses_a_second_engine(path):
    lock = ProcessLock(path)
    lock.acquire("shop-1")
    path.write_text("{half")
    assert holder(path) == {}
    with pytest.raises(InUse, match="process \\?"):
        ProcessLock(path).acquire("shop-2")
    lock.release()


def foreign(process: ProcessIdentity, **changes: Any) -> dict[str, Any]:
    """Return the lock file of a process with this id on another host or in a namespace."""
    known = process._replace(**changes)
    return {
        "pid": known.pid,
        "host": known.host,
        "boot_id": known.boot,
        "process_started": known.started,
        "pid_namespace": known.namespace,
        "sprint": "shop-3",
        "started_at": "2026-01-01T00:00:00+00:00",
    }


@pytest.fixture
def bystander():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    "changes",
    [
        {"namespace": "pid:[1]"},
        {"started": "1"},
        {"host": "elsewhere"},
        # An older version wrote only the boot id, which containers share with their host.
        {"started": "", "namespace": ""},
    ],
)
def test_stop_signals_no_process_that_only_has_the_number_of_the_holder(
    tmp_path, monkeypatch, bystander, changes, capsys
):
    monkeypatch.setenv("CALORON_HOME", str(tmp_path))
    (tmp_path / "projects" / "shop").mkdir(parents=True)
    (tmp_path / "projects" / "shop" / "config.yml").write_text("name: shop\n")
    path = tmp_path / "projects" / "shop" / "engine.lock"
    lock = ProcessLock(path)
    lock.acquire("shop-3")
    path.write_text(json.dumps(foreign(this_process(bystander.pid), **changes)))
    try:
        assert main(["stop", "--project", "shop"]) == 8
    finally:
        lock.release()
    assert bystander.poll() is None
    assert "cannot be reached from here" in capsys.readouterr().err


def test_the_hint_names_a_process_to_kill_only_if_it_is_the_holder(path, bystander):
    with single_instance(path, "the shell"):
        with pytest.raises(InUse) as refused, single_instance(path, "the shell"):
            pass
        assert refused.value.hint.endswith(f"kill {os.getpid()}")
        other = foreign(this_process(bystander.pid), namespace="pid:[1]", host="box")
        path.write_text(json.dumps(other))
        with pytest.raises(InUse) as refused, single_instance(path, "the shell"):
            pass
        assert refused.value.hint.endswith("stop it on box")


def test_a_signal_reaches_the_process_itself(bystander):
    assert this_process(bystander.pid).send_signal(signal.SIGTERM)
    assert bystander.wait() == -signal.SIGTERM
    assert not this_process(bystander.pid).send_signal(signal.SIGTERM)
