"""Finds out what this machine offers to agents, by trying it: each finding is one row."""

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
from caloron.agents import scope
from caloron.agents.foreground import run_confined
from caloron.agents.remedies import INSTALL
from caloron.agents.sandbox import Bubblewrap, run
from caloron.agents.seccomp import program
from caloron.agents.watch import Watch
from caloron.errors import CaloronError, PreconditionFailed
from caloron.ports import AgentRequest, AgentRunner, Caps, Confinement, Network

_PYTHON = (3, 11)
_GIT = (2, 38)
_BUBBLEWRAP = (0, 8)
_FREE_MB = 2048
_PATIENCE_S = 60.0
#: Frameworks whose program is known to answer `--version`, and to do nothing else then.
_TELL_VERSION = ("claude-code",)
_MB = 1 << 20


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at: whether it is well, what was seen, and what to do."""

    check: str
    ok: bool
    detail: str
    remedy: str = ""
    #: Whether agents cannot run without it.
    needed: bool = True


def examine(home: Path) -> Iterator[Finding]:
    """Everything but the project's own framework, one by one as it is found."""
    yield _python()
    yield _git()
    yield _bubblewrap()
    sandbox = _sandbox()
    yield sandbox
    if sandbox.ok:
        yield _seccomp()
        yield from (limit() for limit in (_processes, _memory, _file_size, _temporary_files))
        yield _kernel_memory()
        yield from _told_limits()
        yield cgroup()
        yield from (_network_none(), _network_model(), _network_public())
    yield _disk(home)
    yield _clock()


def at_a_glance(home: Path, *, sandboxed: bool) -> Iterator[Finding]:
    """What is found out in a moment, before a sprint makes anything."""
    yield _python()
    yield _git()
    if sandboxed:
        yield _bubblewrap()
    disk = _disk(home)
    # A small project may do with less.
    yield msgspec.structs.replace(disk, needed=False)


_ANSWER_S = 20


def _python() -> Finding:
    version = sys.version.split()[0]
    ok = sys.version_info >= _PYTHON
    return Finding(
        check="python", ok=ok, detail=f"{version} at {sys.executable}",
        remedy="" if ok else "install Python 3.11 or later",
    )  # fmt: skip


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
    said = (done.stdout.strip() or done.stderr.strip()).partition("\n")[0]
    if done.returncode != 0:
        detail = f"{argv[0]} fails with exit code {done.returncode}: {said}"
        return Finding(check=name, ok=False, detail=detail, remedy=f"see what {argv[0]} says")
    found = re.search(r"(\d+)\.(\d+)", said)
    ok = found is not None and (int(found[1]), int(found[2])) >= least
    return Finding(check=name, ok=ok, detail=said, remedy="" if ok else remedy)


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
    if not program():
        return Finding(
            check="seccomp", ok=False, needed=False,
            detail=f"no filter of system calls for {os.uname().machine}; the namespaces remain",
            remedy="run agents on x86_64 or aarch64",
        )  # fmt: skip
    return _seen("seccomp", _READ_SECCOMP, "2", "system calls are filtered", Caps())


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


def _processes() -> Finding:
    detail = "RLIMIT_NPROC, set inside; a fork bomb was stopped"
    return _seen("processes", _FORK, "stopped", detail, Caps(processes=24))


def _memory() -> Finding:
    detail = "RLIMIT_DATA per process, a hog was stopped; the sum of all is watched by the shim"
    return _seen("memory", _ALLOCATE, "stopped", detail, Caps(memory_mb=256))


def _file_size() -> Finding:
    detail = "RLIMIT_FSIZE per file, a big file was stopped; the sum of all is watched by the shim"
    script = _WRITE.format(path="/workspace/big")
    return _seen("file size", script, "stopped", detail, Caps(file_mb=8))


def _temporary_files() -> Finding:
    detail = "the size of /tmp, a file system of its own; a filler was stopped"
    script = _WRITE.format(path="/tmp/big")
    return _seen("temporary files", script, "stopped", detail, Caps(memory_mb=128))


_FILL_SOCKETS = """
import socket, time
held, total = [], 0
while total < 64 << 20:
    held += socket.socketpair()
    held[-1].setblocking(False)
    try:
        while True:
            total += held[-1].send(bytes(1 << 16))
    except BlockingIOError:
        pass
time.sleep(60)
"""


def _kernel_memory() -> Finding:
    """Let a small process hold much memory in its sockets, and watch it as the shim does."""
    watch = Watch(memory_mb=40, processes=1000, disk_mb=1 << 20, folders=[])
    with tempfile.TemporaryDirectory(prefix="caloron-doctor-") as place:
        given = Confinement(workspace=Path(place))
        argv = (sys.executable, "-S", "-E", "-c", _FILL_SOCKETS)
        confined = Bubblewrap().confine(argv, given)
        ended = run_confined(confined, Path(place, "log"), limit_s=_PATIENCE_S, watch=watch)
    ok = "MB of memory" in ended.over
    return Finding(
        check="kernel memory", ok=ok, needed=False,
        detail="the shim counts the buffers of sockets and the inodes of /tmp; a hog was ended"
        if ok else "what sockets hold cannot be counted here, so it is not limited",
        remedy="" if ok else "let a cgroup bound all agents together, see below",
    )  # fmt: skip


_SHARE_MEMORY = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        held = bytearray(os.urandom(1 << 20) * 60)
        break
time.sleep(60)
"""


def cgroup() -> Finding:
    """Say whether the kernel limits an agent with all its children, or the shim only watches."""
    if scope.options() is not None:
        return _scope()
    most = memory_max(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    if most is not None:
        detail = (
            f"memory.max is {most // _MB:,} MB for Caloron and all agents together; the sum of "
            "what one agent holds is only watched"
        )
        return Finding(check="cgroup", ok=True, detail=detail)
    return Finding(
        check="cgroup", ok=False, needed=False,
        detail="the sum of what an agent and its children hold is only watched, by the shim; what "
        "it does not count (pipes, page tables, System V shared memory) is not limited",
        remedy="run Caloron where systemd-run --scope works: systemd and cgroup v2, for an "
        "ordinary user also a session (loginctl enable-linger)",
    )  # fmt: skip


def _scope() -> Finding:
    """Let three processes hold together what each may hold alone; the watch does not look."""
    watch = Watch(memory_mb=1 << 20, processes=1000, disk_mb=1 << 20, folders=[])
    with tempfile.TemporaryDirectory(prefix="caloron-doctor-") as place:
        given = Confinement(workspace=Path(place), caps=Caps(memory_mb=128))
        argv = (sys.executable, "-S", "-E", "-c", _SHARE_MEMORY)
        confined = Bubblewrap().confine(argv, given)
        ended = run_confined(confined, Path(place, "log"), limit_s=_PATIENCE_S, watch=watch)
    ok = "by the kernel" in ended.over
    return Finding(
        check="cgroup", ok=ok, needed=False,
        detail="memory and processes of an agent with all its children are limited by the kernel, "
        "in a scope of systemd; a hog was ended"
        if ok else "systemd made a scope for an agent, but its memory was not limited",
        remedy="" if ok else "report this",
    )  # fmt: skip


def memory_max(membership: Path, root: Path) -> int | None:
    """The smallest memory limit of the cgroups (version 2) that this process is in."""
    try:
        lines = membership.read_text("utf-8", "replace").splitlines()
    except OSError:
        # No control groups here: then there is no limit.
        return None
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if own is None:
        return None
    found: list[int] = []
    for folder in (root / own, *(root / own).parents):
        if not folder.is_relative_to(root):
            break
        with suppress(OSError, ValueError):
            # A word, `max`, where there is no limit.
            found.append(int((folder / "memory.max").read_text()))
    return min(found, default=None)


def _told_limits() -> Iterator[Finding]:
    for name, what in (
        ("disk", "the shim watches workspace and home, and ends an agent that takes too much"),
        ("output", "the shim cuts what is too much"),
        ("wall clock", "the shim ends the agent and everybody below it"),
    ):
        yield Finding(check=name, ok=True, detail=what)


_CONNECT = """
import socket
for port in ({allowed}, {other}):
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as there:
            print(there.recv(9).decode() or "nothing")
    except OSError:
        print("refused")
"""


def _network_none() -> Finding:
    detail = "servers of this machine could not be reached"
    return _network("none", "refused\nrefused", detail)


def _network_model() -> Finding:
    detail = "an allowed server was reached, another one was not"
    return _network("model", "hello\nrefused", detail)


def _network_public() -> Finding:
    detail = "of this machine, an allowed server was reached, another one was not"
    return _network("public", "hello\nrefused", detail)


def _network(policy: Network, expected: str, detail: str) -> Finding:
    with _greeter() as allowed, _greeter() as other:
        script = _CONNECT.format(allowed=allowed, other=other)
        hosts = (f"127.0.0.1:{allowed}",)
        return _seen(f"network {policy}", script, expected, detail, Caps(), policy, hosts)


@contextmanager
def _greeter() -> Iterator[int]:
    """A server on this machine that greets whoever comes, and its port."""
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


def _seen(
    check: str,
    script: str,
    expected: str,
    detail: str,
    caps: Caps,
    network: Network = "none",
    hosts: tuple[str, ...] = (),
) -> Finding:
    """Run a script in a sandbox and look whether it saw what it should."""
    remedy = "report this: a sandbox ran, but it does not hold what it promises"
    with tempfile.TemporaryDirectory(prefix="caloron-doctor-") as place:
        given = Confinement(workspace=Path(place), network=network, hosts=hosts, caps=caps)
        try:
            confined = Bubblewrap().confine((sys.executable, "-S", "-E", "-c", script), given)
            done = run(confined, timeout_s=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            return Finding(check=check, ok=False, detail="it did not end", remedy=remedy)
        except CaloronError as error:
            return Finding(check=check, ok=False, detail=str(error), remedy=error.hint)
    said = done.stdout.decode("utf-8", "replace").strip()
    if said == expected:
        return Finding(check=check, ok=True, detail=detail)
    stderr = done.stderr.decode("utf-8", "replace").strip()[-300:]
    seen = " ".join(f"saw {said!r} instead of {expected!r} {stderr}".split())
    return Finding(check=check, ok=False, detail=seen, remedy=remedy)


def _disk(home: Path) -> Finding:
    place = next(path for path in (home, *home.parents) if path.is_dir())
    free = shutil.disk_usage(place).free // _MB
    ok = free >= _FREE_MB
    return Finding(
        check="disk space", ok=ok, detail=f"{free:,} MB free at {place}",
        remedy="" if ok else f"free at least {_FREE_MB:,} MB, or choose another CALORON_HOME",
    )  # fmt: skip


def _clock() -> Finding:
    """A clock that stands before the time of our own files was never set."""
    now, installed = time.time(), Path(caloron.__file__).stat().st_mtime
    ok = now > installed - 86_400
    return Finding(
        check="clock", ok=ok, detail=time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now)),
        remedy="" if ok else "set the clock of this machine",
    )  # fmt: skip


def no_framework(known: tuple[str, ...]) -> Finding:
    """No project says which agent works, and none is installed."""
    return Finding(
        check="framework", ok=False, detail="no coding agent is installed here",
        remedy="install one: npm install -g @anthropic-ai/claude-code\n"
        f"or let a sprint use another: caloron sprint GOAL --framework {'|'.join(known)}",
    )  # fmt: skip


def setup_network(entries: Sequence[str]) -> Finding:
    """Setup has the network of this machine as it is."""
    closed = " ".join("setup=public" if entry == "setup=full" else entry for entry in entries)
    return Finding(
        check="network setup", ok=False, needed=False,
        detail="setup reaches the servers and the abstract sockets of this machine, with your user "
        "id, and your own network (network_roles has setup=full)",
        remedy=f'caloron config set network_roles "{closed}"',
    )  # fmt: skip


def framework(name: str, find: Callable[[], AgentRunner]) -> Finding:
    """The project's framework: whether it can be used, and its version as seen from inside."""
    try:
        runner = find()
        runner.check()
        seen = _version(runner) if name in _TELL_VERSION else "it can be started"
    except CaloronError as error:
        return Finding(check="framework", ok=False, detail=str(error), remedy=error.hint)
    return Finding(check="framework", ok=True, detail=f"{name}: {seen}")


def _version(runner: AgentRunner) -> str:
    with tempfile.TemporaryDirectory(prefix="caloron-doctor-") as place:
        workspace, home = Path(place, "workspace"), Path(place, "home")
        workspace.mkdir()
        home.mkdir()
        sandbox = Bubblewrap()
        command = runner.command(
            AgentRequest(
                role="doctor",
                task="",
                prompt="",
                workspace=sandbox.inside(workspace),
                run_dir=Path(place),
                home=home,
                home_inside=sandbox.home_inside(home),
            )
        )
        program = tuple(takewhile(lambda word: not word.startswith("-"), command.argv))
        given = Confinement(
            workspace=workspace, home=home, read_only=command.read_only, env=command.env
        )
        try:
            done = run(sandbox.confine((*program, "--version"), given), timeout_s=_PATIENCE_S)
        except subprocess.TimeoutExpired as error:
            raise _does_not_start(program, "it did not answer") from error
    if done.returncode != 0:
        raise _does_not_start(program, done.stderr.decode("utf-8", "replace").strip()[-300:])
    return done.stdout.decode("utf-8", "replace").strip()


def _does_not_start(program: tuple[str, ...], why: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"{' '.join(program)} does not start in a sandbox: {why}",
        hint="let agents read all that it needs: caloron config set read_only FOLDER",
    )
