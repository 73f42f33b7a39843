"""What a whole family of processes uses, which no limit of the kernel's counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from caloron.agents.processes import descendants
from caloron.agents.watch import Watch
from tests.integration.agents.conftest import Attempt, until


def _watch(folder: Path, **limits: int) -> Watch:
    given = {"memory_mb": 10_000, "processes": 1000, "disk_mb": 1000} | limits
    return Watch(**given, folders=[str(folder)])


def test_a_family_within_its_limits_is_left_alone(tmp_path: Path) -> None:
    assert _watch(tmp_path).look([os.getpid()]) == ""


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
        assert _watch(tmp_path, memory_mb=80).look(family[:2]) == ""
        assert "MB of memory, of 80 allowed" in _watch(tmp_path, memory_mb=80).look(family)
    finally:
        for each in hogs:
            each.communicate(b"\n")


def test_disk_is_counted_in_every_folder_and_no_link_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "large").write_bytes(os.urandom(4 << 20))
    place = tmp_path / "place" / "deep"
    place.mkdir(parents=True)
    (place / "link").symlink_to(outside)
    assert _watch(place.parent, disk_mb=2).look([]) == ""
    for name in ("a", "b", "c"):
        (place / name).write_bytes(os.urandom(1 << 20))
    assert _watch(place.parent, disk_mb=2).look([]) == "3 MB on disk, of 2 allowed"


def test_what_is_open_and_in_no_folder_is_counted_once(tmp_path: Path) -> None:
    handle = os.memfd_create("hoard")
    file = os.open(tmp_path / "x", os.O_RDWR | os.O_CREAT)
    (tmp_path / "x").unlink()
    again = os.dup(file)
    try:
        os.write(handle, bytes(30 << 20))
        os.write(file, os.urandom(3 << 20))
        assert _watch(tmp_path, disk_mb=2).look([os.getpid()]) == "3 MB on disk, of 2 allowed"
        assert _watch(tmp_path, disk_mb=5).look([os.getpid()]) == ""
        # The same file in a child is the same file.
        me = [os.getpid(), os.getpid()]
        assert _watch(tmp_path, disk_mb=5).look(me) == ""
    finally:
        for each in (handle, file, again):
            os.close(each)


def test_descendants_are_found_also_when_a_thread_made_them_or_their_parent_is_gone() -> None:
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
        until(lambda: len(descendants(parent.pid)) >= 3, "the shell and both sleepers are found")
    finally:
        for pid in [*descendants(parent.pid), parent.pid]:
            os.kill(pid, 9)
        parent.communicate()


def test_an_agent_over_a_limit_is_ended_at_once_and_its_result_says_so(attempt: Attempt) -> None:
    watch = {
        "memory_mb": 4096,
        "processes": 100,
        "disk_mb": 5,
        "folders": [str(attempt.workspace)],
    }
    script = "trap '' TERM; head -c 20000000 /dev/zero | tr '\\0' x > big; sleep 600"
    attempt.start_shell(script, watch=watch)
    assert attempt.end() == 0
    result = attempt.result()
    assert result is not None
    assert result["over"].endswith("MB on disk, of 5 allowed")
    assert result["exit_code"] == 137
    assert not result["timed_out"]
