"""The agent's process as its shim holds it: how it starts, and how all of it ends.

Standard library only, because the shim runs on it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from typing import Any, NoReturn

from caloron.agents.processes import (
    Process,
    children,
    descendants,
    end_family,
    living,
    look,
    send,
    sidecar_environment,
)

_ROUNDS_OF_KILLING = 10
_KILLED = 128 + signal.SIGKILL
_COPIED_AT_ONCE = 1 << 20
_PR_SET_CHILD_SUBREAPER = 36
#: Less of a processor than this is a program that waits, not one that works.
_IDLE_SHARE = 0.01
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Child:
    """One agent with everything below it, and the helper that runs beside it."""

    def __init__(self, spec: dict[str, Any], secrets: dict[str, str]) -> None:
        self._spec = spec
        self._secrets = secrets
        self._wrappers: int = spec.get("wrappers", 0)
        self._beside = 0
        self._opener = -1
        self._kin: dict[int, Process] = {}
        self._looked_at = time.monotonic()
        self.process: Process | None = None

    def start(self, attempt: int, lock: int, log: str) -> tuple[int, int]:
        """Start the agent behind a gate; the reading ends of its output and its errors."""
        if self._spec.get("beside"):
            self._beside = _start_beside(self._spec["beside"], log)
        stdin = _to_read(self._spec["stdin"])
        gate, self._opener = os.pipe()
        output, output_end = os.pipe()
        errors, errors_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(self._opener)
            os.close(lock)
            self._become_agent(gate, (stdin, output_end, errors_end), attempt)
        for handle in (stdin, gate, output_end, errors_end):
            os.close(handle)
        _adopt_orphans()
        self.process = look(pid)
        assert self.process is not None
        return output, errors

    def open_gate(self) -> None:
        """Let the agent begin: its id is written down by now."""
        os.write(self._opener, b"!")
        os.close(self._opener)

    def _become_agent(self, gate: int, streams: tuple[int, int, int], attempt: int) -> NoReturn:
        argv = self._spec["argv"]
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            if os.read(gate, 1) != b"!":
                os._exit(127)
            for target, source in enumerate(streams):
                os.dup2(source, target)
            for target, path in self._spec.get("files", {}).items():
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                os.dup2(handle, int(target))
                # The number may be the very one that was wanted: dup2 then changes nothing.
                os.set_inheritable(int(target), True)
            os.chdir(self._spec["cwd"])
            env = self._spec["env"] | self._secrets | {"CALORON_ATTEMPT": str(attempt)}
            os.execvpe(argv[0], argv, env)
        except OSError as error:
            os.write(2, f"cannot start {argv[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)

    def family(self) -> dict[int, Process]:
        """The agent and everybody below it who lives now."""
        found = descendants(os.getpid())
        found.pop(self._beside, None)
        return found

    def worked(self) -> bool:
        """Whether the family used the processor since this was asked last."""
        now, at = self.family(), time.monotonic()
        used = sum(p.ticks - (self._kin[p.pid].ticks if p.pid in self._kin else 0)
                   for p in now.values())  # fmt: skip
        idle = (at - self._looked_at) * _TICKS_PER_S * _IDLE_SHARE
        self._looked_at = at
        self._remember(now)
        return used > idle

    def sandbox_was_killed(self, code: int) -> bool:
        """Whether a signal ended the sandbox, and not the agent in it; `code` is how it ended.

        The process outside reports the end of the agent by its exit code, so a signal that ended
        it was sent to it. Its exit code is the same for an agent that was killed and for a killed
        first process inside. But bwrap waits for the first process inside only if that one was
        killed; if the agent has ended, the first process becomes our child.
        """
        if code < 0 or not self._wrappers:
            return bool(self._wrappers)
        return code == _KILLED and not set(children(os.getpid())) - {self._beside}

    def terminate(self) -> None:
        """Ask the family to end; what belongs to the sandbox itself would take all down at once."""
        self._remember(self.family())
        spared = self._sandbox_itself()
        for process in self._kin.values():
            if process.pid not in spared:
                send(process, signal.SIGTERM)

    def kill(self) -> None:
        self._remember(self.family())
        for process in self._kin.values():
            send(process, signal.SIGKILL)

    def end_everybody(self) -> None:
        """Nobody of the agent's is left when its result is told: also who hid in a session."""
        assert self.process is not None
        for _ in range(_ROUNDS_OF_KILLING):
            self._remember(self.family())
            if not self._kin or not end_family(self.process.pid, self._kin.values()):
                break
        if self._beside:
            os.kill(self._beside, signal.SIGKILL)
            os.waitpid(self._beside, 0)
            self._beside = 0

    def _sandbox_itself(self) -> set[int]:
        generation = {self.process.pid} if self.process else set()
        spared: set[int] = set()
        for _ in range(self._wrappers):
            spared |= generation
            generation = {p.pid for p in self._kin.values() if p.parent in generation}
        return spared

    def _remember(self, kin: dict[int, Process]) -> None:
        """Whoever was once seen in the family is ended with it, also if it left since."""
        self._kin = {process.pid: process for process in living(self._kin.values())} | kin


def _to_read(path: str) -> int:
    """A file for an agent to read, as a copy that nobody can change.

    The file itself could be opened anew through /proc, and written to: no mount stands before it.
    """
    if not path:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    copy = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        while os.sendfile(copy, file.fileno(), None, _COPIED_AT_ONCE):
            pass
    whole = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(copy, fcntl.F_ADD_SEALS, whole)
    os.lseek(copy, 0, os.SEEK_SET)
    return copy


def _start_beside(argv: list[str], log: str) -> int:
    write = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    streams = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, write, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(argv[0], argv, sidecar_environment(), file_actions=streams, setsid=True)


def _adopt_orphans() -> None:
    """Become the parent of each descendant whose own parent ends; otherwise it is lost."""
    # Not by `ctypes`, which needs ten times the time and memory for this one call.
    from _ctypes import call_function, dlopen, dlsym

    libc = dlopen(None, 0)  # type: ignore[arg-type] # None: this process itself
    call_function(dlsym(libc, "prctl"), (_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
