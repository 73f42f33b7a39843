"""Checks by trying what this machine offers to agents; each result is one row."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import takewhile
from pathlib import Path

import msgspec

import caloron
from caloron.agents.clis.base import prepare_run
from caloron.agents.clis.registry import FRAMEWORKS, installable
from caloron.agents.sandbox import scope
from caloron.agents.sandbox.bubblewrap import INSTALL, Bubblewrap
from caloron.agents.sandbox.seccomp import program
from caloron.agents.supervise.supervise import Buffer, Limits, run, supervise
from caloron.errors import CaloronError, PreconditionFailed
from caloron.ports import AgentCli, Caps, Network, SandboxSpec

_PYTHON = (3, 11)
_GIT = (2, 38)
_BUBBLEWRAP = (0, 8)
_FREE_MB = 2048
_PATIENCE_S = 60.0
_ANSWER_S = 20
_MB = 1 << 20
_INTERPRETER = (sys.executable, "-S", "-E", "-c")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check: the observation, and the remedy if it failed."""

    check: str
    ok: bool
    detail: str
    remedy: str = ""
    #: True: agents cannot run without it.
    needed: bool = True


def _result(check: str, ok: bool, detail: str, remedy: str, *, needed: bool = True) -> Finding:
    """Return a finding whose remedy is only for a check that failed."""
    return Finding(check=check, ok=ok, detail=detail, remedy="" if ok else remedy, needed=needed)


def examine(home: Path) -> Iterator[Finding]:
    """Check everything but the project's own framework, one result at a time."""
    yield _python()
    yield _git()
    yield _bubblewrap()
    sandbox = _sandbox()
    yield sandbox
    if sandbox.ok:
        yield _seccomp()
        for check, script, caps, detail in _LIMITS:
            yield _tried(check, script, "stopped", detail, caps)
        yield _kernel_memory()
        for check, detail in _SUPERVISED:
            yield Finding(check=check, ok=True, detail=detail)
        yield cgroup()
        for policy, expected, detail in _NETWORKS:
            yield _network(policy, expected, detail)
    yield _disk(home)
    yield _clock()


def at_a_glance(home: Path, *, sandboxed: bool) -> Iterator[Finding]:
    """Run the quick checks, before a sprint creates anything."""
    yield _python()
    yield _git()
    if sandboxed:
        yield _bubblewrap()
    disk = _disk(home)
    # A small project may do with less.
    yield msgspec.structs.replace(disk, needed=False)


def _python() -> Finding:
    version = sys.version.split()[0]
    ok = sys.version_info >= _PYTHON
    return _result("python", ok, f"{version} at {sys.executable}", "install Python 3.11 or later")


def _git() -> Finding:
    return _program("git", ("git", "--version"), _GIT, "install git 2.38 or later")


def _bubblewrap() -> Finding:
    remedy = f"{INSTALL} (0.8 or later)"
    return _program("bubblewrap", ("bwrap", "--version"), _BUBBLEWRAP, remedy)


def _program(name: str, argv: tuple[str, ...], least: tuple[int, int], remedy: str) -> Finding:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_ANSWER_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else f"no answer in {_ANSWER_S} s"
        detail = f"{argv[0]} cannot be run: {why}"
        return Finding(check=name, ok=False, detail=detail, remedy=remedy)
    printed = (done.stdout.strip() or done.stderr.strip()).partition("\n")[0]
    if done.returncode != 0:
        detail = f"{argv[0]} fails with exit code {done.returncode}: {printed}"
        return Finding(check=name, ok=False, detail=detail, remedy=f"read the message of {argv[0]}")
    version = re.search(r"(\d+)\.(\d+)", printed)
    ok = version is not None and (int(version[1]), int(version[2])) >= least
    return _result(name, ok, printed, remedy)


def _sandbox() -> Finding:
    mode = "as root: agents get a user id of their own"
    if os.geteuid() != 0:
        mode = "as an ordinary user: agents get a user namespace"
    try:
        Bubblewrap().check()
    except CaloronError as error:
        return Finding(check="sandbox", ok=False, detail=str(error), remedy=error.hint)
    return Finding(check="sandbox", ok=True, detail=f"one was run, {mode}")


_READ_SECCOMP = "print([l.split()[1] for l in open('/proc/self/status') if l[:8] == 'Seccomp:'][0])"


def _seccomp() -> Finding:
    if program():
        return _tried("seccomp", _READ_SECCOMP, "2", "system calls are filtered", Caps())
    detail = f"no filter of system calls for {os.uname().machine}; the namespaces remain"
    return _result("seccomp", False, detail, "run agents on x86_64 or aarch64", needed=False)


_FORK = """
import os, time
try:
    for number in range(200):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
except BlockingIOError:
    print("stopped")
"""
_ALLOCATE = """
try:
    bytearray(512 << 20)
except MemoryError:
    print("stopped")
"""
_WRITE = """
try:
    with open({path!r}, "wb", 0) as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
except OSError:
    print("stopped")
"""


_LIMITS = (
    ("processes", _FORK, Caps(processes=24), "RLIMIT_NPROC, set inside; a fork bomb was stopped"),
    ("memory", _ALLOCATE, Caps(memory_mb=256),
     "RLIMIT_DATA per process, a hog was stopped; the sum of all is watched by the shim"),
    ("file size", _WRITE.format(path="/workspace/big"), Caps(file_mb=8),
     "RLIMIT_FSIZE per file, a big file was stopped; the sum of all is watched by the shim"),
    ("temporary files", _WRITE.format(path="/tmp/big"), Caps(memory_mb=128),
     "the size of /tmp, a file system of its own; a filler was stopped"),
)  # fmt: skip
_SUPERVISED = (
    ("disk", "the shim watches workspace and home, and ends an agent that takes too much"),
    ("output", "the shim cuts what is too much"),
    ("wall clock", "the shim ends the agent and all its processes"),
)

_FILL_SOCKETS = """
import socket, time
pairs, total = [], 0
while total < 64 << 20:
    pairs += socket.socketpair()
    pairs[-1].setblocking(False)
    try:
        while True:
            total += pairs[-1].send(bytes(1 << 16))
    except BlockingIOError:
        pass
time.sleep(60)
"""


def _kernel_memory() -> Finding:
    """Let a small process fill its sockets, and watch it as the shim does."""
    ok = "MB of memory" in _limit_exceeded(_FILL_SOCKETS, Caps(), watched_mb=40)
    detail = "the shim counts the buffers of sockets and the inodes of /tmp; a hog was ended"
    if not ok:
        detail = "what sockets hold cannot be counted here, so it is not limited"
    remedy = "let a cgroup bound all agents together, see below"
    return _result("kernel memory", ok, detail, remedy, needed=False)


def _limit_exceeded(script: str, caps: Caps, *, watched_mb: int) -> str:
    """Run a script until it is over a limit of memory, and return that limit."""
    from caloron.agents.supervise.watch import Watch

    watch = Watch(memory_mb=watched_mb, processes=1000, disk_mb=1 << 20, folders=[])
    with tempfile.TemporaryDirectory(prefix="caloron-doctor-") as folder:
        spec = SandboxSpec(workspace=Path(folder), caps=caps)
        confined = Bubblewrap().confine((*_INTERPRETER, script), spec)
        return supervise(confined, Limits(_PATIENCE_S, watch=watch), stdout=Buffer()).over


_SHARE_MEMORY = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        memory = bytearray(os.urandom(1 << 20) * 60)
        break
time.sleep(60)
"""


def cgroup() -> Finding:
    """Check whether the kernel limits an agent with all its children, or only the shim does."""
    if scope.options() is not None:
        return _scope()
    most = memory_max(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    if most is not None:
        detail = (
            f"memory.max is {most // _MB:,} MB for Caloron and all agents together; the sum of "
            "what one agent holds is only watched"
        )
        return Finding(check="cgroup", ok=True, detail=detail)
    detail = (
        "the sum of what an agent and its children hold is only watched, by the shim; what "
        "it does not count (pipes, page tables, System V shared memory) is not limited"
    )
    remedy = (
        "run Caloron where systemd-run --scope works: systemd and cgroup v2, for an "
        "ordinary user also a session (loginctl enable-linger)"
    )
    return _result("cgroup", False, detail, remedy, needed=False)


def _scope() -> Finding:
    """Let three processes share a memory limit that each one respects; the watch is off."""
    over = _limit_exceeded(_SHARE_MEMORY, Caps(memory_mb=128), watched_mb=1 << 20)
    ok = "by the kernel" in over
    detail = (
        "memory and processes of an agent with all its children are limited by the kernel, "
        "in a scope of systemd; a hog was ended"
    )
    if not ok:
        detail = "systemd made a scope for an agent, but its memory was not limited"
    return _result("cgroup", ok, detail, "report this", needed=False)


def memory_max(membership: Path, root: Path) -> int | None:
    """Return the smallest memory limit of the cgroups (version 2) of this process."""
    try:
        lines = membership.read_text("utf-8", "replace").splitlines()
    except OSError:
        # No control groups here: then there is no limit.
        return None
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if own is None:
        return None
    limits: list[int] = []
    for folder in (root / own, *(root / own).parents):
        if not folder.is_relative_to(root):
            break
        with suppress(OSError, ValueError):
            # A word, `max`, where there is no limit.
            limits.append(int((folder / "memory.max").read_text()))
    return min(limits, default=None)


_CONNECT = """
import socket
for port in ({allowed}, {other}):
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as there:
            print(there.recv(9).decode() or "nothing")
    except OSError:
        print("refused")
"""


_NETWORKS: tuple[tuple[Network, str, str], ...] = (
    ("none", "refused\nrefused", "servers of this machine could not be reached"),
    ("model", "hello\nrefused", "an allowed server was reached, another one was not"),
    ("public", "hello\nrefused",
     "of this machine, an allowed server was reached, another one was not"),
)  # fmt: skip


def _network(policy: Network, expected: str, detail: str) -> Finding:
    with _greeter() as allowed, _greeter() as other:
        script = _CONNECT.format(allowed=allowed, other=other)
        hosts = (f"127.0.0.1:{allowed}",)
        return _tried(f"network {policy}", script, expected, detail, Caps(), policy, hosts)


@contextmanager
def _greeter() -> Iterator[int]:
    """Run a server on this machine that greets each visitor; its port."""
    import threading

    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def greet() -> None:
            while True:
                try:
                    visitor = server.accept()[0]
                except OSError:
                    # The server is closed: the check is over.
                    return
                with visitor:
                    visitor.sendall(b"hello")

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def _tried(
    check: str,
    script: str,
    expected: str,
    detail: str,
    caps: Caps,
    network: Network = "none",
    hosts: tuple[str, ...] = (),
) -> Finding:
    """Run a script in a sandbox and compare its output with the expected one."""
    remedy = "report this: a sandbox ran, but it does not hold what it promises"
    with tempfile.TemporaryDirectory(prefix="caloron-doctor-") as folder:
        spec = SandboxSpec(workspace=Path(folder), network=network, hosts=hosts, caps=caps)
        try:
            confined = Bubblewrap().confine((*_INTERPRETER, script), spec)
            done = run(confined, timeout_s=_PATIENCE_S)
        except TimeoutError:
            return Finding(check=check, ok=False, detail="it did not end", remedy=remedy)
        except CaloronError as error:
            return Finding(check=check, ok=False, detail=str(error), remedy=error.hint)
    printed = done.stdout.decode("utf-8", "replace").strip()
    if printed == expected:
        return Finding(check=check, ok=True, detail=detail)
    stderr = done.stderr.decode("utf-8", "replace").strip()[-300:]
    differs = " ".join(f"saw {printed!r} instead of {expected!r} {stderr}".split())
    return Finding(check=check, ok=False, detail=differs, remedy=remedy)


def _disk(home: Path) -> Finding:
    existing = next(path for path in (home, *home.parents) if path.is_dir())
    free = shutil.disk_usage(existing).free // _MB
    remedy = f"free at least {_FREE_MB:,} MB, or choose another CALORON_HOME"
    return _result("disk space", free >= _FREE_MB, f"{free:,} MB free at {existing}", remedy)


def _clock() -> Finding:
    """Check the clock: a time before that of our own files was never set."""
    now, installed = time.time(), Path(caloron.__file__).stat().st_mtime
    shown = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    return _result("clock", now > installed - 86_400, shown, "set the clock of this machine")


def no_framework() -> Finding:
    """Report that no project names a framework, and none is installed."""
    commands = " or ".join(info.install for info in installable())
    return Finding(
        check="framework", ok=False, detail="no coding agent is installed here",
        remedy=f"install one: {commands}\n"
        f"or let a sprint use another: caloron sprint GOAL --framework {'|'.join(FRAMEWORKS)}",
    )  # fmt: skip


def setup_network(entries: Sequence[str]) -> Finding:
    """Warn that setup has the network of this machine as it is."""
    closed = " ".join("setup=public" if entry == "setup=full" else entry for entry in entries)
    return Finding(
        check="network setup", ok=False, needed=False,
        detail="setup reaches the servers and the abstract sockets of this machine, with your user "
        "id, and your own network (network_roles has setup=full)",
        remedy=f'caloron config set network_roles "{closed}"',
    )  # fmt: skip


def framework(name: str, make: Callable[[], AgentCli]) -> Finding:
    """Check the project's framework, and read its version inside a sandbox."""
    try:
        cli = make()
        cli.check()
        version = _version(cli) if cli.info.version_args else "it can be started"
    except CaloronError as error:
        return Finding(check="framework", ok=False, detail=str(error), remedy=error.hint)
    return Finding(check="framework", ok=True, detail=f"{name}: {version}")


def _version(cli: AgentCli) -> str:
    with tempfile.TemporaryDirectory(prefix="caloron-doctor-") as folder:
        sandbox = Bubblewrap()
        command, spec = prepare_run(cli, sandbox, Path(folder), role="doctor")
        program = tuple(takewhile(lambda word: not word.startswith("-"), command.argv))
        offline = msgspec.structs.replace(spec, network="none", env=command.env)
        try:
            done = run(
                sandbox.confine((*program, *cli.info.version_args), offline), timeout_s=_PATIENCE_S
            )
        except TimeoutError as error:
            raise _does_not_start(program, "it did not answer") from error
    if done.returncode != 0:
        raise _does_not_start(program, done.stderr.decode("utf-8", "replace").strip()[-300:])
    return done.stdout.decode("utf-8", "replace").strip()


def _does_not_start(program: tuple[str, ...], why: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"{' '.join(program)} does not start in a sandbox: {why}",
        hint="let agents read all that it needs: caloron config set read_only FOLDER",
    )
