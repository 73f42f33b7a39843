"""Memory, disk and sockets of a process tree, which no limit of the kernel counts."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from caloron.agents.sandbox.bubblewrap import Bubblewrap
from caloron.agents.supervise import watch
from caloron.agents.supervise.processes import descendants
from caloron.agents.supervise.supervise import Buffer, Limits, supervise
from caloron.agents.supervise.transcript import Transcript
from caloron.agents.supervise.watch import Watch
from caloron.ports import SandboxSpec
from tests.integration.agents.conftest import Attempt
from tests.support.wait import wait_for


def _watch(folder: Path, **limits: int) -> Watch:
    wide = {"memory_mb": 10_000, "processes": 1000, "disk_mb": 1000}
    return Watch(**wide | limits, folders=[str(folder)])


def test_processes_within_their_limits_are_not_ended(tmp_path: Path) -> None:
    assert _watch(tmp_path).check([os.getpid()]) == ""


def test_memory_is_counted_over_all_processes(tmp_path: Path) -> None:
    hog = "x = bytearray(30 << 20); print('ready', flush=True); input()"
    hogs = [
        subprocess.Popen((sys.executable, "-c", hog), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    try:
        for each in hogs:
            assert each.stdout is not None
            assert each.stdout.readline() == b"ready\n"
        family = [each.pid for each in hogs]
        assert _watch(tmp_path, memory_mb=80).check(family[:2]) == ""
        assert "MB of memory, of 80 allowed" in _watch(tmp_path, memory_mb=80).check(family)
    finally:
        for each in hogs:
            each.communicate(b"\n")


def test_disk_is_counted_in_every_folder_and_no_link_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "large").write_bytes(os.urandom(4 << 20))
    folder = tmp_path / "folder" / "deep"
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(outside)
    assert _watch(folder.parent, disk_mb=2).check([]) == ""
    for name in ("a", "b", "c"):
        (folder / name).write_bytes(os.urandom(1 << 20))
    assert _watch(folder.parent, disk_mb=2).check([]) == "3 MB on disk, of 2 allowed"


def test_an_open_deleted_file_is_counted_once(tmp_path: Path) -> None:
    handle = os.memfd_create("hoard")
    file = os.open(tmp_path / "x", os.O_RDWR | os.O_CREAT)
    (tmp_path / "x").unlink()
    again = os.dup(file)
    try:
        os.write(handle, bytes(30 << 20))
        os.write(file, os.urandom(3 << 20))
        assert _watch(tmp_path, disk_mb=2).check([os.getpid()]) == "3 MB on disk, of 2 allowed"
        assert _watch(tmp_path, disk_mb=5).check([os.getpid()]) == ""
        # A file that a child inherits is counted once.
        me = [os.getpid(), os.getpid()]
        assert _watch(tmp_path, disk_mb=5).check(me) == ""
    finally:
        for each in (handle, file, again):
            os.close(each)


_HOLDS_SOCKETS = """
import socket, time
sockets = []
for _ in range(100):
    pair = socket.socketpair()
    for end in pair:
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        try:
            while True:
                end.send(bytes(1 << 16))
        except BlockingIOError:
            pass
    sockets.append(pair)
print("ready", flush=True)
time.sleep(600)
"""
_HOLDS_CONNECTIONS = """
import socket, time
server = socket.create_server(("127.0.0.1", 0))
sockets = []
for _ in range(100):
    client = socket.create_connection(server.getsockname())
    client.setblocking(False)
    try:
        while True:
            client.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    sockets.append((client, server.accept()[0]))
print("ready", flush=True)
time.sleep(600)
"""
_HOLDS_INODES = """
import time
for number in range(60_000):
    open(f"/tmp/{number}", "w").close()
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    "hog", [_HOLDS_SOCKETS, _HOLDS_CONNECTIONS, _HOLDS_INODES],
    ids=["sockets", "connections", "inodes"],
)  # fmt: skip
def test_kernel_memory_of_a_sandbox_is_counted(tmp_path: Path, hog: str) -> None:
    """The processes themselves are small, so only this rule ends them."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "hog.py").write_text(hog)
    confined = Bubblewrap().confine(("python3", "hog.py"), SandboxSpec(workspace=workspace))
    for allowed, over in ((45, True), (2000, False)):
        log = tmp_path / f"log-{allowed}"
        cancelled = threading.Event()
        watching = _watch(tmp_path, memory_mb=allowed)
        stop = threading.Thread(target=_cancel_when_ready, args=(log, watching, cancelled))
        stop.start()
        ended = supervise(
            confined,
            Limits(120, watch=watching),
            stdout=Transcript(log, 1 << 16),
            cancelled=cancelled.is_set,
        )
        cancelled.set()
        stop.join()
        assert ("MB of memory, of 45 allowed" in ended.over) is over, ended
        assert not ended.timed_out


def _cancel_when_ready(log: Path, watching: Watch, cancelled: threading.Event) -> None:
    """Cancel once the watch has measured twice."""
    while not cancelled.is_set() and not (log.exists() and "ready" in log.read_text()):
        time.sleep(0.05)
    for _ in range(2):
        last = watching.due_at
        while not cancelled.is_set() and watching.due_at == last:
            time.sleep(0.05)
    cancelled.set()


@pytest.mark.parametrize(("memory_mb", "measured"), [(2000, False), (12, True)])
def test_sockets_are_measured_only_if_they_could_be_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_mb: int, measured: bool
) -> None:
    """Counting sockets needs a process, which costs more than all other measurements."""
    workspace, marker, script = (tmp_path / name for name in ("workspace", "marker", "script.py"))
    workspace.mkdir()
    script.write_text(f"open({str(marker)!r}, 'w').close()\nprint(0)\n")
    monkeypatch.setattr(watch, "_MEASURE", str(script))
    seconds = 60 if measured else 3
    line = (
        f"import socket, time; s = [socket.socketpair() for _ in '1' * 40]; time.sleep({seconds})"
    )
    confined = Bubblewrap().confine(("python3", "-c", line), SandboxSpec(workspace=workspace))
    watching = _watch(tmp_path, memory_mb=memory_mb)
    limits = Limits(120, watch=watching)
    supervise(confined, limits, stdout=Buffer(), cancelled=marker.exists)
    assert marker.exists() is measured


def test_a_starting_sandbox_is_not_charged_for_files_of_caloron(tmp_path: Path) -> None:
    """A new mount namespace contains Caloron's folders for a moment."""
    with subprocess.Popen(("unshare", "--map-root-user", "--mount", "sleep", "600")) as half_made:
        try:
            own = str(Path("/proc/self/ns/mnt").readlink())
            namespace = Path(f"/proc/{half_made.pid}/ns/mnt")
            wait_for(lambda: str(namespace.readlink()) != own, "a mount namespace")
            assert _watch(tmp_path, memory_mb=20).check([half_made.pid]) == ""
        finally:
            half_made.kill()


def test_descendants_include_children_of_threads_and_of_ended_parents() -> None:
    script = (
        "import subprocess, threading\n"
        "def make(): subprocess.Popen(['sh', '-c', 'setsid sleep 600 & sleep 600'])\n"
        "t = threading.Thread(target=make); t.start(); t.join()\n"
        "print('ready', flush=True); input()"
    )
    parent = subprocess.Popen(
        (sys.executable, "-c", script), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        wait_for(
            lambda: len(descendants(parent.pid)) >= 3, "the shell and both sleepers are running"
        )
    finally:
        for pid in [*descendants(parent.pid), parent.pid]:
            os.kill(pid, 9)
        parent.communicate()


def test_an_agent_over_a_limit_is_ended_and_its_result_names_the_limit(attempt: Attempt) -> None:
    watch = {
        "memory_mb": 4096,
        "processes": 100,
        "disk_mb": 5,
        "folders": [str(attempt.workspace)],
    }
    script = "trap '' TERM; head -c 20000000 /dev/zero | tr '\\0' x > big; sleep 600"
    attempt.start_shell(script, watch=watch)
    result = attempt.finished()
    assert result["over"].endswith("MB on disk, of 5 allowed")
    assert result["exit_code"] == 137
    assert not result["timed_out"]
