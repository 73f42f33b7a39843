"""Starts shims, waits for them and ends them, also those that another process started.

The lock file shows whether a shim lives; a process id counts only together with the start time and
the boot id that the shim wrote down.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from caloron.agents.supervise import processes
from caloron.errors import InUse
from caloron.store.files import write_atomic
from caloron.store.lock import boot_id

_SHIM = Path(__file__).with_name("shim.py")
_PASSED_ON = (
    "PATH", "LANG", "LC_ALL", "TZ", "CALORON_CRASH_AT", "CALORON_CRASH_LOG",
    *processes.PROXY_VARIABLES,
)  # fmt: skip
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PROBE_S = 0.2
_STEP_S = 0.01

_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for the disk",
    "T": "stopped",
    "t": "stopped by a debugger",
    "I": "idle",
}


class _Identity(NamedTuple):
    pid: int
    start_time: int
    agent_pid: int
    agent_start_time: int


def start(
    run_dir: Path, spec: dict[str, Any], secrets: dict[str, Any] | None = None
) -> subprocess.Popen[bytes]:
    """Start a shim for a spec; it has the lock of the run directory from its first moment on.

    `secrets` never touch the disk: `env` for the agent, and `redact`, values to keep out of logs.
    """
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(run_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _end_agent(run_dir)
        (run_dir / "shim.json").unlink(missing_ok=True)
        write_atomic(run_dir / "spec.json", json.dumps(spec).encode())
        with (run_dir / "shim.log").open("ab") as log:
            shim = subprocess.Popen(
                (sys.executable, "-S", "-E", str(_SHIM), str(run_dir.absolute()), str(lock)),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                pass_fds=(lock,),
                start_new_session=True,
            )
        _send_secrets(shim, secrets or {})
        return shim
    except BlockingIOError as error:
        raise InUse(f"an agent is already running in {run_dir}") from error
    finally:
        os.close(lock)


def _send_secrets(shim: subprocess.Popen[bytes], secrets: dict[str, Any]) -> None:
    assert shim.stdin is not None
    try:
        shim.stdin.write(json.dumps(secrets).encode())
        shim.stdin.close()
    except BrokenPipeError:
        # The shim died at once; the process that waits for it will notice.
        return


def wait_until_gone(run_dir: Path) -> None:
    """Block until the shim of this run is gone."""
    _try_lock(run_dir, fcntl.LOCK_SH)


def is_alive(run_dir: Path) -> bool:
    """True if the shim of this run lives."""
    return not _try_lock(run_dir, fcntl.LOCK_SH | fcntl.LOCK_NB)


def agent_pid(run_dir: Path) -> int:
    """Return the process id of the agent while its shim lives, or of the shim; 0: neither."""
    if not is_alive(run_dir):
        return 0
    identity = _identity(run_dir)
    return identity.agent_pid or identity.pid if identity else 0


def stop(run_dir: Path, grace_s: float = 5) -> None:
    """Ask the shim to end its agent and itself; after the grace, end both."""
    give_up = time.monotonic() + grace_s
    identity = _identity(run_dir)
    while identity is None and is_alive(run_dir) and time.monotonic() < give_up:
        time.sleep(_STEP_S)
        identity = _identity(run_dir)
    shim = processes.read_process(identity.pid) if identity else None
    if identity and shim and shim.started == identity.start_time and is_alive(run_dir):
        processes.send(shim, signal.SIGTERM)
        # A shim that is stopped takes the signal only when it goes on.
        processes.send(shim, signal.SIGCONT)
        give_up = time.monotonic() + grace_s
        while is_alive(run_dir) and time.monotonic() < give_up:
            time.sleep(_STEP_S)
        processes.send(shim, signal.SIGKILL)
        wait_until_gone(run_dir)
    reap(run_dir)


def reap(run_dir: Path) -> None:
    """End the processes that a dead shim left; does nothing while the shim lives."""
    if not is_alive(run_dir):
        _end_agent(run_dir)


def probe(run_dir: Path) -> str:
    """Describe the state of the agent's process in one line."""
    identity = _identity(run_dir)
    if identity is None or not identity.agent_pid:
        return "no agent process was started"
    pid = identity.agent_pid
    before = processes.family(pid)
    leader = before.get(pid)
    if leader is None or leader.started != identity.agent_start_time:
        return f"process {pid} has ended"
    time.sleep(_PROBE_S)
    after = processes.family(pid)
    state = after.get(pid, leader).state
    total = sum(p.ticks for p in after.values())
    used = total - sum(p.ticks for p in before.values())
    cpu = f"{used / _TICKS_PER_S:.2f} s of CPU used" if used > 0 else "no CPU used"
    children = len(after.keys() - {pid})
    count = "1 child" if children == 1 else f"{children} children"
    return (
        f"process {pid} is {_STATES.get(state, 'in state')} ({state}), {cpu} in {_PROBE_S} s"
        f" ({total / _TICKS_PER_S:.1f} s in all), {count},"
        f" last output {_last_output(run_dir)}"
    )


def _try_lock(run_dir: Path, operation: int) -> bool:
    """Take the lock and release it; False if a shim has it. Without a lock there is no shim."""
    try:
        lock = os.open(run_dir / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(lock, operation)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _identity(run_dir: Path) -> _Identity | None:
    """Read the identity of the shim and its agent; None if they were started before this boot."""
    try:
        identity = json.loads((run_dir / "shim.json").read_bytes())
    except FileNotFoundError:
        return None
    if identity["boot_id"] != boot_id():
        return None
    return _Identity(*(identity[name] for name in _Identity._fields))


def _end_agent(run_dir: Path) -> None:
    identity = _identity(run_dir)
    if identity is None or not identity.agent_pid:
        return
    leader = processes.read_process(identity.agent_pid)
    # The kernel reuses an id only once its session is empty.
    if leader is None or leader.started == identity.agent_start_time:
        processes.end_family(identity.agent_pid)
    argv = _sandbox_argv(run_dir)
    while argv and (left := processes.sandbox_processes(argv)):
        if not processes.end_family(identity.agent_pid, left):
            return


def _sandbox_argv(run_dir: Path) -> list[str]:
    """Return the command line of the run's sandbox, which names its folders; empty: none."""
    spec = json.loads((run_dir / "spec.json").read_bytes())
    # Version 0.4 called the depth `wrappers`.
    return list(spec["argv"]) if spec.get("sandbox_depth") or spec.get("wrappers") else []


def _last_output(run_dir: Path) -> str:
    files = (run_dir / "output.log", run_dir / "output.log.tail", run_dir / "stderr.log")
    times = [file.stat().st_mtime for file in files if file.exists() and file.stat().st_size]
    return f"{max(time.time() - max(times), 0):.0f} s ago" if times else "never"
