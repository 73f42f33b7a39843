"""Locks between processes, and which process holds one. Standard library only."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from caloron.errors import HeldByAnother, StoreError

_PATIENCE_S = 10.0
_PAUSE_S = 0.005
#: `holder` takes the lock for an instant: one refusal proves nothing yet.
_TRIES = 5
_BETWEEN_TRIES_S = 0.05


def boot_id() -> str:
    """Tells one boot of this machine from another; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        # This system has no such file.
        return ""


class Holder(NamedTuple):
    """A process, told from every other that ever has its number."""

    pid: int
    started: str
    boot: str
    #: Numbers mean the same only within one.
    namespace: str
    host: str

    @property
    def is_gone(self) -> bool | None:
        """Whether it has ended; None where that cannot be known from here."""
        if not self.started or (self.host, self.namespace) != (_host(), _namespace()):
            return None
        return self.boot != boot_id() or _started(self.pid) != self.started

    def send_signal(self, number: int) -> bool:
        """Signal this very process; False if it cannot be proved that the number is its own."""
        import signal

        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            # The process has ended, or is not ours to signal.
            return False
        try:
            # Compared after the descriptor was opened: that never names a later process.
            if self.is_gone is not False:
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True


def this_holder(pid: int | None = None) -> Holder:
    """This process, or another one of this machine."""
    number = os.getpid() if pid is None else pid
    return Holder(number, _started(number), boot_id(), _namespace(), _host())


def _host() -> str:
    return os.uname().nodename


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        # This system has no such namespace.
        return ""


def _started(pid: int) -> str:
    """When a process was started, as the kernel counts; empty if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        # The process has ended.
        return ""
    fields = stat[stat.rindex(b")") + 2 :].split()
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


class ProcessLock:
    """A lock for as long as a command runs: held until released, or until this process dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        return self._fd is not None

    def acquire(self, sprint: str = "") -> None:
        """Take the lock, or raise `HeldByAnother` with the holder's name."""
        fd = _opened(self.path)
        if not _taken(fd):
            try:
                raise _held_by(_read(fd), self.path)
            finally:
                os.close(fd)
        self._fd = fd
        self.describe(sprint)

    def describe(self, sprint: str) -> None:
        """Write down what the holder works on, for the processes that are refused."""
        if self._fd is None:
            raise RuntimeError(f"{self.path} is not held by this process")
        # Commands that only ask for the holder do not need it.
        from datetime import UTC, datetime

        process = this_holder()
        content = json.dumps(
            {
                "pid": process.pid,
                "host": process.host,
                "boot_id": process.boot,
                "process_started": process.started,
                "pid_namespace": process.namespace,
                "sprint": sprint,
                "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            }
        ).encode()
        try:
            os.pwrite(self._fd, content, 0)
            os.ftruncate(self._fd, len(content))
        except OSError as error:
            raise StoreError(
                f"cannot write {self.path}: {error.strerror}", hint="free some space on that disk"
            ) from error

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
    """What the process that holds the lock wrote down; None if no living process holds it."""
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


def process_of(who: dict[str, Any]) -> Holder:
    """The process that wrote this into its lock; one that an older Caloron wrote is unknown."""
    pid = who.get("pid")
    keys = ("process_started", "boot_id", "pid_namespace", "host")
    return Holder(pid if isinstance(pid, int) else 0, *(str(who.get(key, "")) for key in keys))


@contextmanager
def single_instance(path: Path, what: str) -> Iterator[None]:
    """Hold a lock for the time of the block, or say which process runs the same already."""
    lock = ProcessLock(path)
    try:
        lock.acquire(what)
    except HeldByAnother as error:
        who = holder(path) or {}
        here = process_of(who).is_gone is False
        end = f"kill {who['pid']}" if here else f"stop it on {who.get('host', 'its machine')}"
        raise HeldByAnother(
            f"{what} runs already: process {who.get('pid', '?')} on"
            f" {who.get('host', 'this machine')}, since {who.get('started_at', 'just now')}",
            hint=f"use that one, or end it: {end}",
        ) from error
    try:
        yield
    finally:
        lock.release()


def _taken(fd: int) -> bool:
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if left:
                time.sleep(_BETWEEN_TRIES_S)
        else:
            return True
    return False


def _read(fd: int) -> dict[str, Any]:
    """What the holder wrote; empty while it is just taking the lock."""
    try:
        content = json.loads(os.pread(fd, 4096, 0))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _held_by(who: dict[str, Any], path: Path) -> HeldByAnother:
    sprint = f", sprint {who['sprint']}" if who.get("sprint") else ""
    return HeldByAnother(
        f"project {path.parent.name!r} is held by process {who.get('pid', '?')} on"
        f" {who.get('host', 'this machine')}{sprint}, since {who.get('started_at', 'just now')}",
        hint=f"wait for it, or stop it: caloron stop --project {path.parent.name}",
    )


def _opened(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(
            f"cannot open {path}: {error.strerror}",
            hint="make the file and its directory writable for you",
        ) from error


@contextmanager
def turn(path: Path) -> Iterator[int]:
    """A short while alone on what the lock file stands for; gives the file's descriptor."""
    handle = _opened(path)
    try:
        _wait_for(handle, path)
        yield handle
    finally:
        os.close(handle)


def _wait_for(handle: int, path: Path) -> None:
    give_up = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise HeldByAnother(
                    f"another process is busy with {path}", hint="try again in a moment"
                ) from None
            time.sleep(_PAUSE_S)
        else:
            return
