"""Locks between processes, and the process that holds one. Standard library only."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from caloron.errors import InUse, store_errors

#: How long `file_lock` waits for a lock that is held for short times only.
_TIMEOUT_S = 10.0
#: `holder` takes a lock for an instant, so one refusal is not enough.
_REFUSED_AFTER_S = 0.2
_RETRY_S = 0.005
#: The keys of a `ProcessIdentity` in the content of a lock file.
_IDENTITY = ("pid", "process_started", "boot_id", "pid_namespace", "host")


def boot_id() -> str:
    """Return the id of this boot of the machine; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        # This system has no such file.
        return ""


class ProcessIdentity(NamedTuple):
    """A process, distinguished from others that get the same pid later."""

    pid: int
    started: str
    boot: str
    #: The pid namespace.
    namespace: str
    host: str

    @property
    def is_gone(self) -> bool | None:
        """True if it has ended; None if that cannot be determined from here."""
        if not self.started or (self.host, self.namespace) != (_host(), _namespace()):
            return None
        return self.boot != boot_id() or _started(self.pid) != self.started

    def send_signal(self, number: int) -> bool:
        """Send a signal; False if the pid cannot be proved to be that of this process."""
        return signal_exactly(self.pid, number, lambda: self.is_gone is False)


def signal_exactly(pid: int, number: int, is_same: Callable[[], bool]) -> bool:
    """Send a signal to a process; False if it has ended or is not the same any more."""
    import signal

    try:
        handle = os.pidfd_open(pid)
    except OSError:
        # The process has ended, or is not ours to signal.
        return False
    try:
        # Compared after opening: the descriptor never refers to a later process.
        if not is_same():
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def this_process(pid: int | None = None) -> ProcessIdentity:
    """Return this process, or another one of this machine."""
    number = os.getpid() if pid is None else pid
    return ProcessIdentity(number, _started(number), boot_id(), _namespace(), _host())


def _host() -> str:
    return os.uname().nodename


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        # This system has no pid namespaces.
        return ""


def _started(pid: int) -> str:
    """Return the start time of a process in kernel ticks; empty if it has ended."""
    fields = stat_fields(pid)
    return fields[19].decode() if fields and fields[0] not in (b"Z", b"X") else ""


def stat_fields(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on; none if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 (a hot path: no Path objects)
            line = file.read()
    except OSError:
        # The process has ended.
        return []
    # The name in parentheses may itself contain spaces and parentheses.
    return line[line.rindex(b")") + 2 :].split()


class ProcessLock:
    """A lock that is held until it is released or this process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        return self._fd is not None

    def acquire(self, sprint: str = "") -> None:
        """Acquire the lock, or raise `InUse` with the process that holds it."""
        fd = _opened(self.path)
        if not flock(fd, _REFUSED_AFTER_S):
            try:
                content, project = _read(fd), self.path.parent.name
                sprint = f", sprint {content['sprint']}" if content.get("sprint") else ""
                raise InUse(
                    f"project {project!r} is held by {_described(content, sprint)}",
                    hint=f"wait for it, or stop it: caloron stop --project {project}",
                )
            finally:
                os.close(fd)
        self._fd = fd
        self.describe(sprint)

    def describe(self, sprint: str) -> None:
        """Write the sprint of the holder into the file, for processes that are refused."""
        if self._fd is None:
            raise RuntimeError(f"{self.path} is not held by this process")
        # Commands that only read the holder do not need it.
        from datetime import UTC, datetime

        content = dict(zip(_IDENTITY, this_process(), strict=True)) | {
            "sprint": sprint,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        text = json.dumps(content).encode()
        with store_errors(f"cannot write {self.path}", hint="free some space on that disk"):
            os.pwrite(self._fd, text, 0)
            os.ftruncate(self._fd, len(text))

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> ProcessLock:
        if not self.held:
            self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def holder(path: Path) -> dict[str, Any] | None:
    """Return the content written by the process that holds the lock; None if none does."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read(fd)
        return None
    finally:
        os.close(fd)


def process_of(content: dict[str, Any]) -> ProcessIdentity:
    """Return the process that wrote this content; older versions of Caloron wrote less."""
    pid = content.get("pid")
    names = (str(content.get(key, "")) for key in _IDENTITY[1:])
    return ProcessIdentity(pid if isinstance(pid, int) else 0, *names)


@contextmanager
def single_instance(path: Path, what: str) -> Iterator[None]:
    """Hold a lock during the block; `InUse` names the process that holds it already."""
    lock = ProcessLock(path)
    try:
        lock.acquire(what)
    except InUse as error:
        content = holder(path) or {}
        is_here = process_of(content).is_gone is False
        host = content.get("host", "its machine")
        end = f"kill {content['pid']}" if is_here else f"stop it on {host}"
        raise InUse(
            f"{what} runs already: {_described(content)}",
            hint=f"use that one, or end it: {end}",
        ) from error
    try:
        yield
    finally:
        lock.release()


def flock(fd: int, timeout_s: float) -> bool:
    """Lock a file; False if another process still holds it after the timeout."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_RETRY_S)
        else:
            return True


def _read(fd: int) -> dict[str, Any]:
    """Return what the holder wrote; empty if it has just acquired the lock."""
    try:
        content = json.loads(os.pread(fd, 4096, 0))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _described(content: dict[str, Any], sprint: str = "") -> str:
    """Return the process that holds a lock, for messages."""
    place = f"process {content.get('pid', '?')} on {content.get('host', 'this machine')}"
    return f"{place}{sprint}, since {content.get('started_at', 'just now')}"


def _opened(path: Path) -> int:
    hint = "make the file and its directory writable for you"
    with store_errors(f"cannot open {path}", hint=hint):
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


@contextmanager
def file_lock(path: Path) -> Iterator[int]:
    """Hold a lock during a short block, after waiting for it; return the file descriptor."""
    handle = _opened(path)
    try:
        if not flock(handle, _TIMEOUT_S):
            raise InUse(f"another process is busy with {path}", hint="try again in a moment")
        yield handle
    finally:
        os.close(handle)
