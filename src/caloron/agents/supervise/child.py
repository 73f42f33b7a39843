"""A child process with everything below it: how it starts, and how all of it ends.

Standard library only, because the shim runs on it.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from caloron.agents.supervise.processes import (
    Process,
    children,
    descendants,
    end_family,
    read_process,
    sandbox_processes,
    send,
    sidecar_environment,
)

if TYPE_CHECKING:
    from caloron.ports import SandboxedCommand

_ROUNDS_OF_KILLING = 10
_KILLED = 128 + signal.SIGKILL
_COPIED_AT_ONCE = 1 << 20
_PR_SET_CHILD_SUBREAPER = 36
_SIDECAR_GRACE_S = 1.0
#: A program that uses less of a processor than this waits.
_IDLE_SHARE = 0.01
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: Python ignores these signals, and a child would inherit that.
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)


class Child:
    """A child of a process with threads, and the sidecar that runs beside it."""

    def __init__(self) -> None:
        self.process: Process | None = None
        self._sidecar = 0
        self._code: int | None = None
        self._sandbox_argv: tuple[str, ...] = ()

    def start(
        self, command: SandboxedCommand, stdin: bytes | Path, *, separate: bool
    ) -> tuple[int, ...]:
        """Start the child; the reading ends of its output, and of its errors if `separate`."""
        self._sandbox_argv = command.argv if command.sandbox_depth else ()
        pipes = [os.pipe() for _ in range(1 + separate)]
        source = sealed_copy(stdin)
        output, errors = pipes[0][1], pipes[-1][1]
        # Nothing of ours runs between fork and exec: other threads may hold any lock.
        actions: list[tuple[Any, ...]] = [
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, errors, 2),
            (os.POSIX_SPAWN_DUP2, source, 0),
        ]
        for handle, path in command.files.items():
            actions.append((os.POSIX_SPAWN_OPEN, handle, str(path), os.O_RDONLY, 0))
        argv = ("env", "-C", str(command.cwd), *command.argv)
        try:
            if command.sidecar:
                self._sidecar = start_sidecar(command.sidecar, errors)
            pid = os.posix_spawnp(
                "env", argv, command.env, file_actions=actions, setsid=True, setsigdef=_IGNORED
            )
        finally:
            for handle in (source, *(writer for _, writer in pipes)):
                os.close(handle)
        self.process = read_process(pid)
        return tuple(reader for reader, _ in pipes)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def family(self) -> dict[int, Process]:
        """Return the child and everything below it that lives now."""
        child = read_process(self.pid)
        return ({child.pid: child} if child else {}) | descendants(self.pid)

    def wait(self) -> int:
        """Return the exit code of the child once it has ended; negative: a signal ended it."""
        if self._code is None:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            killed = ended is not None and ended.si_code != os.CLD_EXITED
            # The family ends before the child is reaped: until then its id is not used again.
            end_family(self.pid, sandbox_processes(self._sandbox_argv) if killed else ())
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    def terminate(self) -> None:
        self.kill()

    def kill(self) -> None:
        end_family(self.pid)

    def end_everybody(self) -> None:
        """End whatever is left, also what hides in a session of its own."""
        if self.process is not None and self._code is None:
            end_family(self.pid)
            self.wait()
        self._end_sidecar()

    def _end_sidecar(self) -> None:
        """Let the proxy remove its socket; end it if it does not."""
        if not self._sidecar:
            return
        handle = os.pidfd_open(self._sidecar)
        try:
            os.kill(self._sidecar, signal.SIGTERM)
            ended = select.poll()
            ended.register(handle, select.POLLIN)
            if not ended.poll(_SIDECAR_GRACE_S * 1000):
                os.kill(self._sidecar, signal.SIGKILL)
            os.waitpid(self._sidecar, 0)
        finally:
            os.close(handle)
        self._sidecar = 0


class GatedChild(Child):
    """The agent of a shim: it starts only after its identity was written down."""

    def __init__(self, spec: dict[str, Any], secrets: dict[str, str]) -> None:
        super().__init__()
        self._spec = spec
        self._secrets = secrets
        self._sandbox_depth: int = spec.get("sandbox_depth", 0)
        self._gate = -1
        #: The processor time of each process of the family at the last check.
        self._ticks: dict[int, int] = {}
        self._checked_at = time.monotonic()

    def fork(self, attempt: int, lock: int, sidecar_log: Path) -> tuple[int, int]:
        """Fork the agent behind a gate; the reading ends of its output and its errors."""
        if self._spec.get("sidecar"):
            log = os.open(sidecar_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._sidecar = start_sidecar(tuple(self._spec["sidecar"]), log)
            os.close(log)
        stdin = sealed_copy(Path(self._spec["stdin"]) if self._spec["stdin"] else b"")
        gate, self._gate = os.pipe()
        output, output_end = os.pipe()
        errors, errors_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(self._gate)
            os.close(lock)
            self._become_agent(gate, (stdin, output_end, errors_end), attempt)
        for handle in (stdin, gate, output_end, errors_end):
            os.close(handle)
        _adopt_orphans()
        self.process = read_process(pid)
        return output, errors

    def wait(self) -> int:
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    def open_gate(self) -> None:
        os.write(self._gate, b"!")
        os.close(self._gate)

    def _become_agent(self, gate: int, streams: tuple[int, int, int], attempt: int) -> NoReturn:
        argv = self._spec["argv"]
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGHUP, signal.SIGTERM, *_IGNORED):
                signal.signal(number, signal.SIG_DFL)
            if os.read(gate, 1) != b"!":
                os._exit(127)
            for target, source in enumerate(streams):
                os.dup2(source, target)
            for target, path in self._spec.get("files", {}).items():
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                os.dup2(handle, int(target))
                # The two numbers may be the same: dup2 then changes nothing.
                os.set_inheritable(int(target), True)
            os.chdir(self._spec["cwd"])
            env = self._spec["env"] | self._secrets | {"CALORON_ATTEMPT": str(attempt)}
            os.execvpe(argv[0], argv, env)
        except OSError as error:
            os.write(2, f"cannot start {argv[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)

    def family(self) -> dict[int, Process]:
        # Orphans of the agent become our own children.
        family = descendants(os.getpid())
        family.pop(self._sidecar, None)
        return family

    def worked(self) -> bool:
        """True if the family used the processor since the last call."""
        now, at = self.family(), time.monotonic()
        used = sum(process.ticks - self._ticks.get(pid, 0) for pid, process in now.items())
        idle = (at - self._checked_at) * _TICKS_PER_S * _IDLE_SHARE
        self._ticks = {pid: process.ticks for pid, process in now.items()}
        self._checked_at = at
        return used > idle

    def sandbox_was_killed(self) -> bool:
        """True if a signal ended the sandbox, and not the agent in it.

        The process outside reports the end of the agent by its exit code, so a signal that ended
        it was sent to it. Its exit code is the same for an agent that was killed and for a killed
        first process inside. But bwrap waits for the first process inside only if that one was
        killed; if the agent has ended, the first process becomes our child.
        """
        code = self.wait()
        if code < 0 or not self._sandbox_depth:
            return bool(self._sandbox_depth)
        return code == _KILLED and not set(children(os.getpid())) - {self._sidecar}

    def terminate(self) -> None:
        """Ask the family to end; the sandbox itself would take all down at once."""
        family = self.family()
        spared = generation = {self.pid} if self._sandbox_depth else set()
        for _ in range(self._sandbox_depth - 1):
            generation = {p.pid for p in family.values() if p.parent in generation}
            spared = spared | generation
        for process in family.values():
            if process.pid not in spared:
                send(process, signal.SIGTERM)

    def kill(self) -> None:
        for process in self.family().values():
            send(process, signal.SIGKILL)

    def end_everybody(self) -> None:
        for _ in range(_ROUNDS_OF_KILLING):
            family = self.family()
            if not family or not end_family(self.pid, family.values()):
                break
        self._end_sidecar()


def start_sidecar(argv: tuple[str, ...], output: int) -> int:
    """Start the filtering proxy of a sandbox, outside of it; its process id."""
    streams = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, output, 1),
        (os.POSIX_SPAWN_DUP2, output, 2),
    ]
    return os.posix_spawn(argv[0], argv, sidecar_environment(), file_actions=streams, setsid=True)


def sealed_copy(content: bytes | Path) -> int:
    """Copy the input of an agent to where nothing can change it.

    The file itself could be opened anew through /proc, and written to: no mount prevents that.
    """
    copy = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    if isinstance(content, bytes):
        with open(copy, "wb", closefd=False) as file:
            file.write(content)
    else:
        with open(content, "rb", buffering=0) as file:  # noqa: PTH123
            while os.sendfile(copy, file.fileno(), None, _COPIED_AT_ONCE):
                pass
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(copy, fcntl.F_ADD_SEALS, seals)
    os.lseek(copy, 0, os.SEEK_SET)
    return copy


def _adopt_orphans() -> None:
    """Become the parent of each descendant whose own parent ends; otherwise it is lost."""
    # Not by `ctypes`, which needs ten times the time and memory for this one call.
    from _ctypes import call_function, dlopen, dlsym

    libc = dlopen(None, 0)  # type: ignore[arg-type] # None: this process itself
    call_function(dlsym(libc, "prctl"), (_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
