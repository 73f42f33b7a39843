"""Limits that the kernel enforces for a whole sandbox in a scope of systemd."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from caloron.agents import doctor
from caloron.agents.sandbox import scope
from caloron.agents.sandbox.bubblewrap import Bubblewrap
from caloron.agents.supervise.processes import sandbox_processes
from caloron.agents.supervise.supervise import Buffer, Limits, run, supervise
from caloron.agents.supervise.watch import Watch
from caloron.ports import Caps, SandboxedCommand, SandboxSpec
from tests.integration.agents.conftest import Attempt
from tests.support.wait import wait_for

needs_systemd = pytest.mark.skipif(
    scope.options() is None,
    reason="systemd-run --scope sets no limits here (no systemd, or no cgroup v2): "
    "run this on a machine that was booted with systemd",
)
_CAPS = Caps(memory_mb=96, processes=40)
#: Shared memory that no process has attached, so a scan of processes does not count it.
HOARD = """
import ctypes, time
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
for _ in range(12):
    handle = libc.shmget(0, 16 << 20, 0o1600)
    address = ctypes.c_void_p(libc.shmat(handle, None, 0))
    ctypes.memset(address, 1, 16 << 20)
    libc.shmdt(address)
print("allocated", flush=True)
time.sleep(5)
"""
_LIMIT = "over 96 MB of memory, of 96 allowed by the kernel"


def _confined(workspace: Path, script: str) -> SandboxedCommand:
    sandbox = Bubblewrap()
    sandbox.give_ownership(workspace)
    argv = (sys.executable, "-S", "-E", "-c", script)
    return sandbox.confine(argv, SandboxSpec(workspace=workspace, caps=_CAPS))


def _watch(workspace: Path) -> dict[str, object]:
    return {"memory_mb": 96, "processes": 40, "disk_mb": 1000, "folders": [str(workspace)]}


@needs_systemd
def test_unattached_memory_over_the_limit_ends_an_attempt_with_the_limit_in_its_result(
    attempt: Attempt,
) -> None:
    confined = _confined(attempt.workspace, HOARD)
    attempt.start(
        *confined.argv, env=confined.env, cwd=str(confined.cwd),
        sandbox_depth=confined.sandbox_depth,
        files={str(fd): str(path) for fd, path in confined.files.items()},
        watch=_watch(attempt.workspace), lease_ms=60_000,
    )  # fmt: skip
    result = attempt.finished()
    assert result["over"] == _LIMIT
    assert "allocated" not in (attempt.run_dir / "output.log").read_text()


@needs_systemd
def test_unattached_memory_over_the_limit_ends_a_setup(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    watch = Watch(memory_mb=96, processes=40, disk_mb=1000, folders=[str(workspace)])
    confined = _confined(workspace, HOARD)
    ended = supervise(confined, Limits(60, watch=watch), stdout=Buffer())
    assert ended.over == _LIMIT


@needs_systemd
def test_the_scope_has_both_limits_and_adds_no_environment(
    tmp_path: Path,
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    wait = "import time, os; print(sorted(os.environ), '$HOME', flush=True); time.sleep(60)"
    confined = _confined(workspace, wait)
    argv = list(confined.argv[confined.argv.index("--") + 1 :])
    with subprocess.Popen(
        ("/bin/sh", "-c", 'f=$1; shift; exec "$@" 9<"$f"', "sh", str(confined.files[9]),
         *confined.argv),
        env=confined.env, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            # The process replaces itself, so the test searches for its new command line.
            wait_for(
                lambda: process.pid in [p.pid for p in sandbox_processes(argv)], "it is started"
            )
            own = Path(f"/proc/{process.pid}/cgroup").read_text().strip().removeprefix("0::")
            limits = Path(f"/sys/fs/cgroup{own}")
            assert (limits / "memory.max").read_text() == f"{96 << 20}\n"
            assert (limits / "memory.swap.max").read_text() == "0\n"
            assert (limits / "pids.max").read_text() == "42\n"
            assert process.stdout is not None
            names = process.stdout.readline()
            assert "PATH" in names
            assert names.endswith(" $HOME\n")
            assert "INVOCATION_ID" not in names
            assert "XDG_RUNTIME_DIR" not in names
        finally:
            process.kill()
    wait_for(lambda: not limits.exists(), "nothing is left of the scope")


@needs_systemd
def test_doctor_reports_the_limits_of_the_kernel() -> None:
    row = doctor.cgroup()
    assert row.ok
    assert "limited by the kernel" in row.detail


def test_without_a_scope_the_watch_enforces_the_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This `systemd-run` fails as on a machine that was not booted with systemd."""
    failing = tmp_path / "bin" / "systemd-run"
    failing.parent.mkdir()
    failing.write_text("#!/bin/sh\necho System has not been booted with systemd >&2; exit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{failing.parent}:{os.environ['PATH']}")
    scope.options.cache_clear()
    try:
        assert scope.options() is None
        confined = Bubblewrap().confine((sys.executable, "-c", "print(1)"), _spec(tmp_path))
        assert confined.argv[0].endswith("bwrap")
        assert run(confined).stdout == b"1\n"
        assert "only watched" in doctor.cgroup().detail
    finally:
        scope.options.cache_clear()


def _spec(folder: Path) -> SandboxSpec:
    workspace = folder / "workspace"
    workspace.mkdir()
    return SandboxSpec(workspace=workspace)
