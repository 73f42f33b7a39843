"""One engine per project, and everybody can see which."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from caloron.errors import HeldByAnother
from caloron.ledger.lock import EngineLock, holder
from caloron.store.lock import boot_id

HOLD = """
import sys, time
from pathlib import Path
from caloron.ledger.lock import EngineLock
lock = EngineLock(Path(sys.argv[1]))
lock.acquire("shop-3")
print("held", flush=True)
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
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_whoever_is_refused_learns_who_holds_it_and_how_to_stop_it(path, other):
    with pytest.raises(HeldByAnother) as refused:
        EngineLock(path).acquire("shop-4")
    message = str(refused.value)
    assert f"process {other.pid}" in message
    assert socket.gethostname() in message
    assert "sprint shop-3" in message
    assert "since 20" in message
    assert refused.value.hint.endswith("caloron stop --project shop")
    assert refused.value.exit_code == 5


def test_the_holder_is_seen_without_disturbing_it(path, other):
    seen = holder(path)
    assert seen is not None
    assert seen["pid"] == other.pid
    assert seen["boot_id"] == boot_id()
    assert seen["sprint"] == "shop-3"
    assert holder(path) == seen


def test_a_lock_dies_with_its_process_however_that_ends(path, other):
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert json.loads(path.read_text())["pid"] == other.pid
    assert holder(path) is None
    EngineLock(path).acquire("shop-4")


def test_a_lock_that_was_never_taken_has_no_holder(path):
    assert holder(path) is None


def test_a_released_lock_has_no_holder(path):
    with EngineLock(path) as lock:
        lock.describe("shop-5")
        seen = holder(path)
        assert seen is not None
        assert seen["sprint"] == "shop-5"
    assert holder(path) is None


def test_a_child_does_not_inherit_the_lock(path):
    lock = EngineLock(path)
    lock.acquire("shop-1")
    child = subprocess.Popen(["sleep", "600"], close_fds=False)
    try:
        lock.release()
        assert holder(path) is None
    finally:
        child.kill()
        child.wait()


def test_nonsense_in_the_file_of_a_held_lock_is_no_obstacle(path):
    lock = EngineLock(path)
    lock.acquire("shop-1")
    path.write_text("{half")
    assert holder(path) == {}
    with pytest.raises(HeldByAnother, match="process \\?"):
        EngineLock(path).acquire("shop-2")
    lock.release()
